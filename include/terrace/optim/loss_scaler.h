#pragma once

#include <cstdint>

namespace terrace::optim {

/// The section `fp16` of a DeepSpeed file, its names and defaults.
struct LossScaleOptions {
  double loss_scale = 0;  ///< 0: dynamic; otherwise the scale, which then never changes
  int initial_scale_power = 16;
  std::int64_t loss_scale_window = 1000;
  int hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
};

/// The loss scale of fp16 training, as DeepSpeed has it: halved on an overflow once `hysteresis` -
/// 1 overflows have been let pass, doubled after each `loss_scale_window` steps in a row without
/// one, of which the first after an overflow does not count. The passes are given back at a
/// doubling, or with `consecutive_hysteresis` at every good step. bf16 has no scale (use
/// `LossScaler::none`). Thread-compatible.
class LossScaler {
 public:
  /// What a checkpoint keeps.
  struct State {
    double scale = 1;
    int passes_left = 0;          ///< overflows that will not halve the scale
    std::int64_t good_steps = 0;  ///< in a row
  };

  /// Errors: usage, naming the key, for a scale, window or hysteresis that is not positive.
  explicit LossScaler(const LossScaleOptions& options);
  /// A scale of 1 that never changes.
  [[nodiscard]] static LossScaler none();

  [[nodiscard]] double scale() const { return state_.scale; }
  /// The step is decided: its gradients had (`overflow`) or had no non-finite values.
  void update(bool overflow);

  [[nodiscard]] const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  LossScaleOptions options_;
  bool is_dynamic_;
  State state_;
};

}  // namespace terrace::optim
