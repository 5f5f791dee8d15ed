#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "io/passing_driver.h"
#include "terrace/core/random.h"

namespace terrace::testing {

/// A driver that makes another one misbehave: short transfers (the call is made for less), passing
/// errors (the call is not made) and completions held back and reordered, all drawn from a seed.
class FaultyDriver final : public PassingDriver {
 public:
  struct Options {
    std::uint64_t seed = 1;
    double short_probability = 0.3;
    double passing_probability = 0.2;
    bool refuses_direct = false;  ///< EINVAL for each transfer until the page cache is used
  };

  FaultyDriver(std::unique_ptr<io::Driver> driver, const Options& options)
      : PassingDriver(std::move(driver)), options_(options), random_(options.seed, 7) {}

  io::OpenedFile open(const std::filesystem::path& path, const io::OpenOptions& options) override {
    const io::OpenedFile opened = driver_->open(path, options);
    alignment_ = std::max(alignment_, opened.offset_alignment);
    return opened;
  }
  void use_page_cache(io::FileId file) override {
    driver_->use_page_cache(file);
    options_.refuses_direct = false;
  }

  void push(const io::Piece& piece) override {
    if (options_.refuses_direct && piece.kind != io::Operation::flush) {
      held_.push_back({piece.slot, -EINVAL});
      return;
    }
    if (chance(options_.passing_probability)) {
      static constexpr std::array kPassing = {EAGAIN, EINTR, EBUSY};
      held_.push_back({piece.slot, -kPassing[random_.below(draws_++, kPassing.size())]});
      return;
    }
    io::Piece cut = piece;
    if (piece.size > alignment_ && chance(options_.short_probability)) {
      // One sector at least; now and then an end that no sector has, as after a signal.
      cut.size = alignment_ * static_cast<std::uint32_t>(
                                  1 + random_.below(draws_++, piece.size / alignment_ - 1));
    }
    ++passed_on_;
    driver_->push(cut);
  }

  [[nodiscard]] std::size_t reap(std::span<io::Outcome> outcomes, bool block) override {
    std::vector<io::Outcome> found(outcomes.size());
    const bool must_wait = block && held_.empty() && passed_on_ > 0;
    found.resize(driver_->reap(found, must_wait));
    passed_on_ -= found.size();
    held_.insert(held_.end(), found.begin(), found.end());
    // A random part of what is there, in a random order; at least one.
    for (std::size_t i = held_.size(); i > 1; --i) {
      std::swap(held_[i - 1], held_[random_.below(draws_++, i)]);
    }
    std::size_t count = held_.empty() ? 0 : 1 + random_.below(draws_++, held_.size());
    count = std::min(count, outcomes.size());
    std::copy_n(held_.end() - static_cast<std::ptrdiff_t>(count), count, outcomes.begin());
    held_.resize(held_.size() - count);
    return count;
  }

 private:
  [[nodiscard]] bool chance(double probability) { return random_.uniform(draws_++) < probability; }

  Options options_;
  RandomStream random_;
  std::uint64_t draws_ = 0;
  std::uint32_t alignment_ = 1;
  std::size_t passed_on_ = 0;
  std::vector<io::Outcome> held_;
};

}  // namespace terrace::testing
