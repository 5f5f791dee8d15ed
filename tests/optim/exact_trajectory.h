#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "terrace/device/inline_stream.h"
#include "terrace/kernels/cpu.h"
#include "terrace/optim/optimizer.h"

namespace terrace::optim {

/// One parameter's trajectory in double precision, and beside it a bound of how far any FP32
/// evaluation of the same recurrence may be from it.
///
/// Derivation (running error analysis, Higham, "Accuracy and Stability", 2002, section 3.3). Let u
/// = 2^-24 be the unit roundoff, eta = 2^-149 the largest error of an underflow, and E_x the bound
/// of |computed x - x|. Every rounding of a result r adds u |r| + eta; every coefficient is rounded
/// once itself, which is a relative u. So, with w1 = 1 - beta1, w2 = 1 - beta2:
///     g = gradient [+ l2 p]        E_g = l2 E_p + 2 u l2 |p| + u |g|          (0 without l2)
///     m += w1 (g - m)              E_m = beta1 E_m + w1 E_g + 3 u w1 |g - m| + u |m'|
///     v = beta2 v + w2 g g         E_v = beta2 E_v + 2 u beta2 v + w2 (2 |g| E_g + E_g^2)
///                                        + 3 u w2 g^2 + u v'
///     r = sqrt(v) c                E_r = c min(E_v / sqrt(v), sqrt(E_v)) + 3 u r
///     d = r + eps                  E_d = E_r + u eps + u d
///     q = s m / d                  E_q = s E_m / (d - E_d) + |q| E_d / (d - E_d) + 3 u |q|
///     p = p f - q                  E_p = |f| E_p + 2 u |p f| + E_q + u |p'|
/// That is PyTorch's form, which rounds f = 1 - lr decay. Terrace takes p - (lr decay p + q), which
/// is closer. PyTorch evaluates r as sqrt(v) / c, with as many roundings. Terms of second order are
/// covered by 1 % and the underflows by 8 eta (divided by d - E_d in q).
class ExactTrajectory {
 public:
  ExactTrajectory(const OptimizerOptions& options, double weight_decay, float initial)
      : options_(options), weight_decay_(weight_decay), p_(initial) {}

  void update(double gradient, std::int64_t step, double learning_rate);

  [[nodiscard]] double value() const { return p_; }
  [[nodiscard]] double bound() const { return 1.01 * e_p_; }

 private:
  static constexpr double kU = 0x1p-24;
  static constexpr double kEta = 8 * 0x1p-149;

  OptimizerOptions options_;
  double weight_decay_;
  double p_, m_ = 0, v_ = 0;
  double e_p_ = 0, e_m_ = 0, e_v_ = 0;
};

inline void ExactTrajectory::update(double gradient, std::int64_t step, double learning_rate) {
  const bool decoupled = options_.type == OptimizerType::adamw;
  const bool adagrad = options_.type == OptimizerType::adagrad;
  const double l2 = decoupled ? 0 : weight_decay_;
  const double factor = decoupled ? 1 - learning_rate * weight_decay_ : 1;
  const double g = gradient + l2 * p_;
  const double e_g = l2 == 0 ? 0 : l2 * e_p_ + 2 * kU * l2 * std::abs(p_) + kU * std::abs(g) + kEta;
  // Adagrad is the same with m = g, v's decay and weight 1 and no correction.
  const double w1 = adagrad ? 1 : 1 - options_.beta1;
  const double beta2 = adagrad ? 1 : options_.beta2;
  const double w2 = adagrad ? 1 : 1 - options_.beta2;
  e_m_ = (1 - w1) * e_m_ + w1 * e_g + 3 * kU * w1 * std::abs(g - m_);
  m_ += w1 * (g - m_);
  e_m_ += kU * std::abs(m_) + kEta;
  e_v_ = beta2 * e_v_ + 2 * kU * beta2 * v_ + w2 * (2 * std::abs(g) * e_g + e_g * e_g) +
         3 * kU * w2 * g * g;
  v_ = beta2 * v_ + w2 * g * g;
  e_v_ += kU * v_ + kEta * (1 + std::abs(g));
  const auto t = static_cast<double>(step);
  const double s = adagrad ? learning_rate : learning_rate / (1 - std::pow(options_.beta1, t));
  const double c = adagrad ? 1 : 1 / std::sqrt(1 - std::pow(options_.beta2, t));
  const double root = std::sqrt(v_);
  const double e_root = root > 0 ? std::min(e_v_ / root, std::sqrt(e_v_)) : std::sqrt(e_v_);
  const double d = root * c + options_.eps;
  const double e_d = c * e_root + 3 * kU * root * c + kU * options_.eps + kU * d + kEta;
  const double least = d - e_d;
  const double q = s * m_ / d;
  const double e_q = (s * e_m_ + kEta) / least + std::abs(q) * (e_d / least + 3 * kU) + kEta;
  const double decayed = p_ * factor;
  p_ = decayed - q;
  e_p_ = std::abs(factor) * e_p_ + 2 * kU * std::abs(decayed) + e_q + kU * std::abs(p_) + kEta;
}

/// An optimizer with FP32 state in plain arrays, updated in place; the parameter is the master.
class PlainState {
 public:
  PlainState(const OptimizerOptions& options, std::vector<float> initial)
      : optimizer_(options, {{}, DType::f32, DType::f32, 0}),
        master_(std::move(initial)),
        exp_avg_(kernels::uses_exp_avg(options.type) ? master_.size() : 0),
        exp_avg_sq_(kernels::uses_exp_avg_sq(options.type) ? master_.size() : 0) {}

  void update(Workers& workers, std::span<const float> gradient, const StepScalars& scalars) {
    const auto writable = [](std::vector<float>& v) {
      return device::Span(std::as_writable_bytes(std::span(v)));
    };
    ChunkViews chunk;
    chunk.count = static_cast<std::int64_t>(master_.size());
    chunk.target = {writable(master_), writable(exp_avg_), writable(exp_avg_sq_), {}};
    chunk.source = {chunk.target.master,
                    chunk.target.exp_avg,
                    chunk.target.exp_avg_sq,
                    {},
                    device::Span(std::as_bytes(gradient))};
    kernels::make_cpu_optimizer_ops(workers)->run(*device::make_inline_stream(),
                                                  optimizer_.step(chunk, scalars));
  }

  [[nodiscard]] const std::vector<float>& master() const { return master_; }

 private:
  Optimizer optimizer_;
  std::vector<float> master_, exp_avg_, exp_avg_sq_;
};

}  // namespace terrace::optim
