#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <iostream>
#include <stdexcept>

namespace terrace::testing {

/// Runs `body` in a child that then waits to be killed.
class Child {
 public:
  explicit Child(const std::function<void()>& body) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      body();
      (void)!::write(ends[1], "x", 1);
      while (true) ::pause();
    }
    char ready = 0;
    ::close(ends[1]);
    if (::read(ends[0], &ready, 1) != 1) throw std::runtime_error("the child failed");
    ::close(ends[0]);
  }
  ~Child() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

/// What `body` returns in a child that it ends; where it throws, that is printed and gives 99.
inline int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 99;
    try {
      code = body();
    } catch (const std::exception& error) {
      std::cerr << "in the child: " << error.what() << std::endl;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace terrace::testing
