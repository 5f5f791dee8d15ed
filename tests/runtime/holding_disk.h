#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/passing_driver.h"
#include "terrace/core/error.h"
#include "terrace/device/device.h"
#include "terrace/io/driver.h"

// A disk on which chosen transfers wait for a task of the schedule.

namespace terrace::runtime::testing {

/// A device of which one sees the events that were made, in order; all else is the other device's.
class WatchedDevice final : public device::Device {
 public:
  WatchedDevice(std::unique_ptr<device::Device> device, std::vector<device::Event*>& events)
      : device_(std::move(device)), events_(events) {}
  [[nodiscard]] std::string name() const override { return device_->name(); }
  [[nodiscard]] bool memory_is_host() const override { return device_->memory_is_host(); }
  [[nodiscard]] std::unique_ptr<device::Stream> make_stream(const std::string& name) override {
    return device_->make_stream(name);
  }
  [[nodiscard]] std::unique_ptr<device::Event> make_event() override {
    std::unique_ptr<device::Event> event = device_->make_event();
    events_.push_back(event.get());
    return event;
  }
  [[nodiscard]] device::Buffer allocate(std::size_t bytes, const std::string& purpose) override {
    return device_->allocate(bytes, purpose);
  }
  [[nodiscard]] device::Buffer allocate_pinned(std::size_t bytes,
                                               const std::string& purpose) override {
    return device_->allocate_pinned(bytes, purpose);
  }

 protected:
  void free(void* /*data*/, std::size_t /*bytes*/, bool /*pinned*/) noexcept override {}

 private:
  std::unique_ptr<device::Device> device_;
  std::vector<device::Event*>& events_;
};

/// A task's transfers, in every step, that a disk does not begin before another task is complete.
struct Hold {
  bool on = false;
  io::Operation kind = io::Operation::read;
  std::uint64_t first = 0;   ///< of the pages of its kind that a step moves
  std::uint64_t count = 0;   ///< pages of the task
  std::uint64_t a_step = 1;  ///< pages of its kind
  int until = 0;             ///< the other task
  std::uint64_t steps_ahead = 0;
  const std::vector<device::Event*>* events = nullptr;  ///< by task
  std::uint64_t pages = 0;  ///< of its kind so far: they are moved by one lane

  [[nodiscard]] device::Event& event() const { return *(*events)[static_cast<std::size_t>(until)]; }
};

/// Puts a hold before a driver. Pages are small, so that each is one piece.
class HoldingDriver final : public terrace::testing::PassingDriver {
 public:
  HoldingDriver(std::unique_ptr<io::Driver> driver, Hold& hold)
      : PassingDriver(std::move(driver)), hold_(hold) {}

  io::OpenedFile open(const std::filesystem::path& path, const io::OpenOptions& options) override {
    const io::OpenedFile file = driver_->open(path, options);
    has_pages_.push_back(path.filename() == "pages" || path.filename() == "scratch");
    return file;
  }
  void push(const io::Piece& piece) override {
    if (hold_.on && piece.kind == hold_.kind &&
        has_pages_[static_cast<std::size_t>(piece.file.value)]) {
      const std::uint64_t number = hold_.pages++;
      const std::uint64_t place = number % hold_.a_step;
      if (place >= hold_.first && place < hold_.first + hold_.count) {
        held_.emplace_back(piece, number / hold_.a_step + 1 + hold_.steps_ahead);
        return;
      }
    }
    push_on(piece);
  }
  [[nodiscard]] std::size_t reap(std::span<io::Outcome> outcomes, bool block) override {
    if (block && under_way_ == 0 && !held_.empty()) wait_for(held_.front().second);
    while (!held_.empty() && hold_.event().reached(held_.front().second)) release_first();
    driver_->start();
    const std::size_t count = driver_->reap(outcomes, block);
    under_way_ -= count;
    return count;
  }

 private:
  void push_on(const io::Piece& piece) {
    ++under_way_;
    driver_->push(piece);
  }
  void release_first() {
    push_on(held_.front().first);
    held_.erase(held_.begin());
  }
  void wait_for(std::uint64_t value) {
    try {
      hold_.event().synchronize(value);
    } catch (const Error&) {
      // The run has ended, by an error that its own threads report.
      while (!held_.empty()) release_first();
    }
  }

  Hold& hold_;
  std::vector<bool> has_pages_;                            ///< by file
  std::vector<std::pair<io::Piece, std::uint64_t>> held_;  ///< and the step that each waits for
  std::size_t under_way_ = 0;
};

}  // namespace terrace::runtime::testing
