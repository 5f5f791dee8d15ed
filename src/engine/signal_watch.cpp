#include "signal_watch.h"

#include <algorithm>
#include <chrono>

#include "terrace/core/clock.h"
#include "terrace/core/units.h"

namespace terrace::engine {
namespace {

/// A signal handler can wake nobody, so the flag is looked at.
constexpr std::chrono::milliseconds kPause{100};

}  // namespace

SignalWatch::SignalWatch(const std::atomic<int>& signal, Log& log)
    : signal_(signal), log_(log), thread_([this] { watch(); }) {}

SignalWatch::~SignalWatch() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SignalWatch::set(StopAnswer answer) {
  const std::scoped_lock lock(mutex_);
  answer_ = std::move(answer);
  since_us_ = now_us();
}

void SignalWatch::watch() {
  std::unique_lock lock(mutex_);
  while (signal_.load() == 0) {
    if (changed_.wait_for(lock, kPause, [this] { return stopping_; })) return;
  }
  const StopAnswer answer = answer_;
  const double left = std::max(0.0, answer.seconds - seconds_since(since_us_));
  lock.unlock();
  log_.info("signal {}: {}; the run stops when {} is done{}, a second signal stops it at once",
            signal_.load(), answer.safe, answer.doing,
            answer.seconds > 0 ? fmt::format(", in about {}", format_duration(left)) : "");
}

}  // namespace terrace::engine
