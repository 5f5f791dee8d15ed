#pragma once

#include <atomic>

namespace terrace::engine {

/// Takes SIGINT and SIGTERM while it lives: the first one is only noted, for the trainer to see at
/// the next step boundary; the second one ends the process at once with 130 or 143. At most one at
/// a time. The destructor gives the former handlers back.
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

/// The exit code after a signal: 130 for SIGINT, 143 for SIGTERM.
[[nodiscard]] constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

}  // namespace terrace::engine
