#include "terrace/optim/optimizer.h"

#include <cmath>

#include "terrace/core/error.h"

namespace terrace::optim {
namespace {

void check_beta(double value, std::string_view key) {
  require(value >= 0 && value < 1, ErrorKind::usage,
          "optimizer.params.{} is {}, expected a number from 0 to below 1.", key, value);
}

void check_options(const OptimizerOptions& options) {
  check_beta(options.beta1, "betas[0]");
  check_beta(options.beta2, "betas[1]");
  require(options.eps > 0 && std::isfinite(options.eps), ErrorKind::usage,
          "optimizer.params.eps is {}, expected a number above 0.", options.eps);
  require(options.weight_decay >= 0 && std::isfinite(options.weight_decay), ErrorKind::usage,
          "optimizer.params.weight_decay is {}, expected a number of 0 or above.",
          options.weight_decay);
}

}  // namespace

OptimizerOptions OptimizerOptions::defaults_of(OptimizerType type) {
  OptimizerOptions options;
  options.type = type;
  if (type == OptimizerType::lion) options.beta2 = 0.99;
  if (type == OptimizerType::adagrad) options.eps = 1e-10;
  return options;
}

Optimizer::Optimizer(const OptimizerOptions& options, const Formats& formats)
    : options_(options), formats_(formats) {
  check_options(options);
  require(formats.state.master != MasterFormat::split || formats.parameter == DType::bf16,
          ErrorKind::usage,
          "the optimizer state format \"split\" keeps the master beside a bf16 parameter, but the "
          "parameter is {}: use bf16, or the format \"fp32\".",
          name_of(formats.parameter));
  require(formats.state.moments == DType::f32 || formats.state.moments == DType::bf16,
          ErrorKind::usage, "moments can be kept as fp32 or bf16, not as {}.",
          name_of(formats.state.moments));
}

std::vector<StateEntry> Optimizer::state_entries() const {
  return optim::state_entries(options_.type, formats_.state);
}

kernels::Coefficients Optimizer::coefficients(const StepScalars& scalars) const {
  const bool decoupled =
      options_.type == OptimizerType::adamw || options_.type == OptimizerType::lion;
  const bool is_adam =
      options_.type == OptimizerType::adamw || options_.type == OptimizerType::adam;
  const double rate = scalars.learning_rate;
  double step_size = rate;
  double inverse_root_bias2 = 1;
  if (is_adam && options_.bias_correction) {
    const auto step = static_cast<double>(scalars.step);
    step_size = rate / (1 - std::pow(options_.beta1, step));
    inverse_root_bias2 = 1 / std::sqrt(1 - std::pow(options_.beta2, step));
  }
  const auto rounded = [](double value) { return static_cast<float>(value); };
  kernels::Coefficients c;
  c.gradient_scale = rounded(scalars.gradient_scale);
  c.l2 = decoupled ? 0 : rounded(scalars.weight_decay);
  c.decay = decoupled ? rounded(rate * scalars.weight_decay) : 0;
  c.one_minus_beta1 = rounded(1 - options_.beta1);
  c.beta2 = rounded(options_.beta2);
  c.one_minus_beta2 = rounded(1 - options_.beta2);
  c.inverse_root_bias2 = rounded(inverse_root_bias2);
  c.eps = rounded(options_.eps);
  c.step_size = rounded(step_size);
  c.seed = formats_.seed;
  c.step = static_cast<std::uint64_t>(scalars.step);
  return c;
}

kernels::StepArgs Optimizer::step(const ChunkViews& chunk, const StepScalars& scalars) const {
  require(scalars.step >= 1, ErrorKind::internal, "optimizer step {} asked for; they count from 1.",
          scalars.step);
  return {options_.type,
          {formats_.state.master, formats_.state.moments, formats_.gradient, formats_.parameter},
          chunk,
          coefficients(scalars)};
}

}  // namespace terrace::optim
