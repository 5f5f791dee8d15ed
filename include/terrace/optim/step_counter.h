#pragma once

#include <cstdint>

namespace terrace::optim {

/// Counts what became of the steps. The optimizer's step number and the learning rate follow
/// `updates`, which a skipped step does not advance. Thread-compatible.
class StepCounter {
 public:
  /// What a checkpoint keeps.
  struct State {
    std::int64_t updates = 0;
    std::int64_t skipped = 0;
    std::int64_t skipped_in_a_row = 0;
  };

  /// More halvings than take a loss scale of 2^16 to 1, so that fp16 can find its scale.
  static constexpr std::int64_t kSkipsMax = 25;

  /// Training stops after `skips_max` skipped steps in a row; 0: never.
  explicit StepCounter(std::int64_t skips_max = kSkipsMax) : skips_max_(skips_max) {}

  /// Number of the update that would come next, from 1: `StepScalars::step`.
  [[nodiscard]] std::int64_t next_update() const { return state_.updates + 1; }

  void count_update();
  void count_skip();

  /// Whether the skips in a row are as many as end the training.
  [[nodiscard]] bool gives_up() const {
    return skips_max_ > 0 && state_.skipped_in_a_row >= skips_max_;
  }

  [[nodiscard]] const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  std::int64_t skips_max_;
  State state_;
};

}  // namespace terrace::optim
