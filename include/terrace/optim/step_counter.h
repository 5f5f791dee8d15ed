#pragma once

#include <cstdint>
#include <string_view>

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
  /// `parameter`: the one whose gradient was not finite; `last_good`: the newest state that a user
  /// can go back to, "" when there is none.
  /// Errors: numerics, with both, at the `skips_max`-th skip in a row.
  void count_skip(std::string_view parameter, std::string_view last_good);

  [[nodiscard]] const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  std::int64_t skips_max_;
  State state_;
};

}  // namespace terrace::optim
