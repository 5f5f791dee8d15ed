#pragma once

#include <condition_variable>
#include <mutex>

#include "terrace/device/device.h"

namespace terrace::device {

/// An event on the host: a counter under a mutex.
class Timeline final : public Event {
 public:
  // Both notify with the mutex held: whoever is let go may destroy the event at once.
  void signal(std::uint64_t value) override {
    const std::scoped_lock lock(mutex_);
    if (value > value_) value_ = value;
    changed_.notify_all();
  }

  void poison(std::exception_ptr error) override {
    const std::scoped_lock lock(mutex_);
    if (!error_) error_ = std::move(error);
    changed_.notify_all();
  }

  void synchronize(std::uint64_t value) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return value_ >= value || error_; });
    if (value_ < value) std::rethrow_exception(error_);
  }

  [[nodiscard]] bool reached(std::uint64_t value) const override {
    const std::scoped_lock lock(mutex_);
    return value_ >= value;
  }

  /// Whether a wait for `value` would return or throw at once.
  [[nodiscard]] bool settled(std::uint64_t value) const {
    const std::scoped_lock lock(mutex_);
    return value_ >= value || error_ != nullptr;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t value_ = 0;
  std::exception_ptr error_;
};

}  // namespace terrace::device
