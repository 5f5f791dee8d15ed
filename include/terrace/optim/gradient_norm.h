#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "terrace/kernels/sum_squares.h"

namespace terrace::optim {

/// The global norm of the gradients and the count of non-finite values, in one pass without a
/// temporary.
///
/// Why the order does not matter: the squares of each block of `kernels::kNormBlock` values are
/// summed by a fixed tree in double, and the blocks' sums exactly. So the norm is the same to the
/// bit for every thread count, chunk size, order of arrival, placement and number of ranks, as long
/// as every range starts at a multiple of the block in its flat parameter.
/// Thread-compatible.
class GradientNorm {
 public:
  /// Doubles of the form that ranks exchange.
  static constexpr std::size_t kWireSize = kernels::ExactSum::kLimbs + 1;
  using Wire = std::array<double, kWireSize>;

  /// Adds a range of gradients, which started at a multiple of `kernels::kNormBlock` in its flat
  /// and ended at one or at the flat's end.
  void add(const kernels::SquareSums& sums);
  /// Adds another one's ranges.
  void add(const GradientNorm& other);

  /// For the all-reduce: the element-wise sum of the ranks' vectors is exact, and `from_wire` of it
  /// is the norm over all of them.
  [[nodiscard]] Wire wire() const;
  [[nodiscard]] static GradientNorm from_wire(const Wire& wire);

  [[nodiscard]] std::int64_t nonfinite() const { return nonfinite_; }
  /// The root of the sum of squares; NaN when there are non-finite values.
  [[nodiscard]] double norm() const;

 private:
  kernels::ExactSum sum_;
  std::int64_t nonfinite_ = 0;
};

/// What gradients are multiplied by so that their norm is at most `max_norm`: PyTorch's
/// `clip_grad_norm_`, min(1, max_norm / (norm + 1e-6)). 1 when `max_norm` is 0 (clipping is off).
[[nodiscard]] double clip_factor(double norm, double max_norm);

}  // namespace terrace::optim
