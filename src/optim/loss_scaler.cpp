#include "terrace/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "terrace/core/error.h"

namespace terrace::optim {
namespace {

constexpr double kScaleFactor = 2;

void check_options(const LossScaleOptions& options) {
  require(options.loss_scale >= 0 && std::isfinite(options.loss_scale), ErrorKind::usage,
          "fp16.loss_scale is {}, expected 0 (dynamic) or a number above it.", options.loss_scale);
  require(options.loss_scale_window > 0, ErrorKind::usage,
          "fp16.loss_scale_window is {}, expected a number of steps above 0.",
          options.loss_scale_window);
  require(options.hysteresis > 0, ErrorKind::usage, "fp16.hysteresis is {}, expected 1 or more.",
          options.hysteresis);
  require(options.min_loss_scale > 0 && std::isfinite(options.min_loss_scale), ErrorKind::usage,
          "fp16.min_loss_scale is {}, expected a number above 0.", options.min_loss_scale);
}

}  // namespace

LossScaler::LossScaler(const LossScaleOptions& options)
    : options_(options), is_dynamic_(options.loss_scale == 0) {
  check_options(options);
  state_.scale = is_dynamic_ ? std::ldexp(1.0, options.initial_scale_power) : options.loss_scale;
  state_.passes_left = options.hysteresis - 1;
}

LossScaler LossScaler::none() {
  LossScaleOptions options;
  options.loss_scale = 1;
  return LossScaler(options);
}

void LossScaler::update(bool overflow) {
  if (!is_dynamic_) return;
  if (overflow) {
    state_.good_steps = 0;
    if (state_.passes_left > 0) {
      --state_.passes_left;
    } else {
      state_.scale = std::max(state_.scale / kScaleFactor, options_.min_loss_scale);
    }
    return;
  }
  ++state_.good_steps;
  // DeepSpeed does not count the first good step after an overflow, or of the run.
  const std::int64_t counted = state_.good_steps - 1;
  const bool grows = counted > 0 && counted % options_.loss_scale_window == 0;
  if (grows) state_.scale *= kScaleFactor;
  if (grows || options_.consecutive_hysteresis) state_.passes_left = options_.hysteresis - 1;
}

}  // namespace terrace::optim
