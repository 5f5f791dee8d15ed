#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "terrace/core/log.h"
#include "terrace/core/progress.h"
#include "terrace/train/report.h"

/// What is told while something lasts, and how it is stopped.
namespace terrace::train {

/// Thrown where long work finds that the program is asked to stop. No error: what was begun is
/// cleaned up as it passes, and the program ends with `exit_code_of_signal`.
class Stopped : public std::runtime_error {
 public:
  /// `doing` is what is cut short: "loading the weights"; empty: nothing.
  Stopped(int signal, const std::string& doing);
  [[nodiscard]] int signal() const noexcept { return signal_; }

 private:
  int signal_;
};

/// What is answered to a signal beside what it finds under way.
struct StopAnswer {
  std::string safe = {};   ///< what of the run is kept already: "checkpoint-12 is safe"
  std::string doing = {};  ///< what has to be over first where no `Activity` lasts: "step 13"
  double seconds = 0;      ///< that it takes in all, as far as is known; 0: not known
  std::string then = {};   ///< what follows it: "checkpoint-13 is saved"; empty: nothing
  double then_seconds = 0;
};

class Activity;

/// Looks on, on a thread of its own, while things last that nobody sees: says what goes on once it
/// has lasted for two seconds, and answers the first signal at once, also in the middle of a step
/// that takes minutes. Thread-safe.
class Watch {
 public:
  /// `signal` is 0 until there was one; it, `terminal` and `log` outlive the watch. What lasts for
  /// `patience_seconds` is told.
  Watch(const std::atomic<int>& signal, Terminal& terminal, Log& log, double patience_seconds = 2);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// What to answer from now on.
  void answer(StopAnswer answer);
  /// Throws `Stopped` once there was a signal.
  void stop_if_asked(const std::string& doing = {}) const;

 private:
  friend class Activity;

  void look_on();
  void answer_signal();
  void tell(Activity& activity);

  const std::atomic<int>& signal_;
  Terminal& terminal_;
  Log& log_;
  const double patience_seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  bool answered_ = false;
  StopAnswer answer_;
  std::int64_t answer_since_us_ = 0;
  std::vector<Activity*> activities_;  ///< that last, the newest at the end
  std::thread thread_;
};

struct ActivityOptions {
  /// What is counted: "sequence"; empty: bytes.
  std::string noun = {};
  /// Of what is counted, where it is known from the start.
  std::uint64_t total = 0;
  /// A signal does not cut it short.
  bool to_the_end = false;
};

/// Something that may last, as long as this object lives. Of those that last at once the newest is
/// told. The watch outlives it.
class Activity {
 public:
  /// `doing` as in "saving checkpoint-12".
  Activity(Watch& watch, std::string doing, ActivityOptions options = {});
  ~Activity();
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  /// So much is done of `total` (0: not known). Throws `Stopped` when the program is asked to stop
  /// and this may be cut short.
  void advance(std::uint64_t done, std::uint64_t total);
  /// Throws as `advance` does.
  void check() const;
  /// `advance` for what is handed a function; it refers to this object.
  [[nodiscard]] ProgressFunction progress();

 private:
  friend class Watch;

  /// "saving checkpoint-12 (1.00 GiB of 3.20 GiB), 12 s left".
  [[nodiscard]] std::string line() const;
  /// 0: not known.
  [[nodiscard]] double seconds_left() const;

  Watch& watch_;
  const std::string doing_;
  const ActivityOptions options_;
  const std::int64_t since_us_;
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::uint64_t> total_;
  double told_after_seconds_ = 0;  ///< the watch's
};

}  // namespace terrace::train
