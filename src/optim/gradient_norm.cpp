#include "terrace/optim/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "terrace/core/error.h"

namespace terrace::optim {
namespace {

using kernels::kNormBlock;

/// Blocks whose sums are taken in one call of the kernel: their doubles are 512 bytes of stack.
constexpr std::int64_t kBlocksAtOnce = 64;
constexpr std::int64_t kGrain = kBlocksAtOnce * kNormBlock;

bool is_finite_at(std::span<const std::byte> values, DType dtype, std::int64_t index) {
  // The exponent's bits, all set in an infinity or NaN.
  if (dtype == DType::f32) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, values.data() + index * 4, 4);
    return (bits & 0x7f800000U) != 0x7f800000U;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, values.data() + index * 2, 2);
  const std::uint16_t exponent = dtype == DType::bf16 ? 0x7f80U : 0x7c00U;
  return (bits & exponent) != exponent;
}

/// Counts one block's non-finite values into `found`; positions are in `values`.
void find_nonfinite(std::span<const std::byte> values, DType dtype, std::int64_t begin,
                    NonFinite& found) {
  const auto count = static_cast<std::int64_t>(values.size() / size_of(dtype));
  for (std::int64_t i = begin; i < std::min(begin + kNormBlock, count); ++i) {
    if (is_finite_at(values, dtype, i)) continue;
    ++found.count;
    if (found.first < 0 || i < found.first) found.first = i;
  }
}

struct Partial {
  ExactSum sum;
  NonFinite nonfinite;
};

/// Adds elements [begin, end) of `values`, at most `kGrain` of them.
void add_blocks(std::span<const std::byte> values, DType dtype, std::int64_t begin,
                std::int64_t end, Partial& partial) {
  std::array<double, kBlocksAtOnce> memory;
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t blocks = (end - begin + kNormBlock - 1) / kNormBlock;
  const std::span sums = std::span(memory).first(static_cast<std::size_t>(blocks));
  kernels::sum_squares(values.subspan(static_cast<std::size_t>(begin * size),
                                      static_cast<std::size_t>((end - begin) * size)),
                       dtype, sums);
  for (std::int64_t b = 0; b < blocks; ++b) {
    const double sum = sums[static_cast<std::size_t>(b)];
    // The kernel's contract: the sum is finite exactly if all values are.
    if (std::isfinite(sum)) {
      partial.sum.add(sum);
    } else {
      find_nonfinite(values, dtype, begin + b * kNormBlock, partial.nonfinite);
    }
  }
}

}  // namespace

NonFinite GradientNorm::add(Workers& workers, std::span<const std::byte> values, DType dtype) {
  require(values.size() % size_of(dtype) == 0, ErrorKind::internal,
          "{} bytes are not a whole number of {} gradients.", values.size(), name_of(dtype));
  const auto count = static_cast<std::int64_t>(values.size() / size_of(dtype));
  std::mutex mutex;
  NonFinite found;
  workers.parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    Partial partial;
    for (std::int64_t i = begin; i < end; i += kGrain) {
      add_blocks(values, dtype, i, std::min(i + kGrain, end), partial);
    }
    const std::scoped_lock lock(mutex);
    sum_.add(partial.sum);
    if (partial.nonfinite.count == 0) return;
    found.count += partial.nonfinite.count;
    if (found.first < 0 || partial.nonfinite.first < found.first) {
      found.first = partial.nonfinite.first;
    }
  });
  nonfinite_ += found.count;
  return found;
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
