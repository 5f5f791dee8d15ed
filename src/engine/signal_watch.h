#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "terrace/core/log.h"

namespace terrace::engine {

/// What a run that is asked to stop answers at once.
struct StopAnswer {
  std::string safe;    ///< what of the run is kept already: "step 12 is committed in /nvme/run"
  std::string doing;   ///< what has to be over first: "step 13"
  double seconds = 0;  ///< that it takes in all, as far as is known; 0: not known
};

/// Answers the first signal when it comes, on a thread of its own, while the run is in the middle
/// of a step that may take minutes. Thread-safe.
class SignalWatch {
 public:
  /// `signal` is 0 until there was one; it and `log` outlive the watch.
  SignalWatch(const std::atomic<int>& signal, Log& log);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// What to answer from now on.
  void set(StopAnswer answer);

 private:
  void watch();

  const std::atomic<int>& signal_;
  Log& log_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  StopAnswer answer_;
  std::int64_t since_us_ = 0;  ///< when `answer_` was set
  std::thread thread_;
};

}  // namespace terrace::engine
