#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/core/dtype.h"
#include "terrace/core/workers.h"
#include "terrace/kernels/sum_squares.h"
#include "terrace/optim/exact_sum.h"

namespace terrace::optim {

/// Non-finite values (infinities and NaN) of a range of gradients.
struct NonFinite {
  std::int64_t count = 0;
  std::int64_t first = -1;  ///< position of the first one in the range; -1: none
};

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
  static constexpr std::size_t kWireSize = ExactSum::kLimbs + 1;
  using Wire = std::array<double, kWireSize>;

  /// Adds a range of gradients (f32, bf16 or f16, as many as fit `values`), which must start at a
  /// multiple of `kernels::kNormBlock` in its flat and end at one or at the flat's end. Returns
  /// what was not finite in this range, so that the caller can name the parameter.
  NonFinite add(Workers& workers, std::span<const std::byte> values, DType dtype);

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
  ExactSum sum_;
  std::int64_t nonfinite_ = 0;
};

/// What gradients are multiplied by so that their norm is at most `max_norm`: PyTorch's
/// `clip_grad_norm_`, min(1, max_norm / (norm + 1e-6)). 1 when `max_norm` is 0 (clipping is off).
[[nodiscard]] double clip_factor(double norm, double max_norm);

}  // namespace terrace::optim
