#pragma once

#include <atomic>

namespace terrace::train {

/// Takes SIGINT, SIGTERM and SIGHUP while it lives, but for those that were ignored before (as
/// `nohup` and shells' background jobs have it), which stay so. The first one is only noted, for
/// whatever lasts to see; the second one ends the process at once with 128 + its number. A SIGHUP
/// is never a second one: a terminal that goes away sends several. At most one at a time. The
/// destructor gives the former handlers back.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// The first signal's number, 0 before it. Any thread.
  [[nodiscard]] int signal() const noexcept { return flag().load(std::memory_order_relaxed); }
  /// The same, for code that is handed only what it polls; lives as long as the program.
  [[nodiscard]] const std::atomic<int>& flag() const noexcept;
};

/// The exit code after a signal: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP.
[[nodiscard]] constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

}  // namespace terrace::train
