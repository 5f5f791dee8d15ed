#include "program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace terrace::tools::testing {
namespace {

void redirect(const std::string& path, int descriptor) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(file, descriptor);
  ::close(file);
}

}  // namespace

pid_t begin(std::vector<std::string> arguments, const std::string& out, const std::string& err,
            const Surroundings& surroundings) {
  arguments.insert(arguments.begin(), TERRACE_PROGRAM);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
  for (const auto& [name, value] : surroundings.environment) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  redirect(err, STDERR_FILENO);
  redirect(out, STDOUT_FILENO);
  if (surroundings.prepare) surroundings.prepare();
  ::execv(TERRACE_PROGRAM, argv.data());
  ::_exit(127);
}

int exit_code_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string read_and_remove(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::filesystem::remove(path);
  return text;
}

Result run(std::vector<std::string> arguments, const Surroundings& surroundings) {
  const std::string stem =
      std::filesystem::temp_directory_path() / ("terrace-program-" + std::to_string(::getpid()));
  const int code =
      exit_code_of(begin(std::move(arguments), stem + ".out", stem + ".err", surroundings));
  return {code, read_and_remove(stem + ".out"), read_and_remove(stem + ".err")};
}

void expect_one_sentence(const Result& result, int code) {
  EXPECT_EQ(result.code, code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.starts_with("terrace: error: ") && result.err.ends_with("\n"))
      << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

}  // namespace terrace::tools::testing
