#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace terrace::io {

/// A lock that is given in the order in which it was asked for, so that two who take it again and
/// again take turns. To be used with std::unique_lock. Thread-safe.
class Turns {
 public:
  void lock() {
    std::unique_lock guard(mutex_);
    const std::uint64_t mine = next_++;
    changed_.wait(guard, [&] { return serving_ == mine; });
  }
  void unlock() {
    {
      const std::scoped_lock guard(mutex_);
      ++serving_;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_ = 0;
  std::uint64_t serving_ = 0;
};

}  // namespace terrace::io
