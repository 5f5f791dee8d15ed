#include "terrace/optim/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace terrace::optim {
using kernels::ExactSum;

void GradientNorm::add(const kernels::SquareSums& sums) {
  sum_.add(ExactSum::from_digits(sums.digits));
  nonfinite_ += sums.nonfinite;
}

void GradientNorm::add(const GradientNorm& other) {
  sum_.add(other.sum_);
  nonfinite_ += other.nonfinite_;
}

GradientNorm::Wire GradientNorm::wire() const {
  Wire wire{};
  std::ranges::copy(sum_.digits(), wire.begin());
  wire.back() = static_cast<double>(nonfinite_);
  return wire;
}

GradientNorm GradientNorm::from_wire(const Wire& wire) {
  GradientNorm norm;
  norm.sum_ = ExactSum::from_digits(std::span(wire).first<ExactSum::kLimbs>());
  norm.nonfinite_ = static_cast<std::int64_t>(wire.back());
  return norm;
}

double GradientNorm::norm() const {
  if (nonfinite_ != 0) return std::numeric_limits<double>::quiet_NaN();
  return std::sqrt(sum_.value());
}

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace terrace::optim
