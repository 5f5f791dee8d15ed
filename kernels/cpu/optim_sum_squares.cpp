#include "terrace/core/error.h"
#include "terrace/kernels/sum_squares.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/optim_sum_squares.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "cpu/optim_convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kPartials = 32;

/// Sums kPartials doubles pairwise: element i and i + half, then again.
double sum_pairwise(double* partials) {
  for (std::int64_t half = kPartials / 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half; ++i) partials[i] += partials[i + half];
  }
  return partials[0];
}

using Doubles = hn::CappedTag<double, 8>;
using DoubleV = hn::Vec<Doubles>;
using FloatPart = hn::Rebind<float, Doubles>;

HWY_INLINE void add_square(const float* from, DoubleV& sum) {
  const DoubleV x = hn::PromoteTo(Doubles(), hn::LoadU(FloatPart(), from));
  sum = hn::Add(sum, hn::Mul(x, x));
}

/// The sum of squares of kNormBlock floats.
HWY_INLINE double block_sum(const float* HWY_RESTRICT block) {
  const Doubles d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  alignas(64) double partials[kPartials];
  for (std::int64_t part = 0; part < kPartials; part += 4 * lanes) {
    DoubleV s0 = hn::Zero(d);
    DoubleV s1 = s0;
    DoubleV s2 = s0;
    DoubleV s3 = s0;
    for (std::int64_t i = part; i < kNormBlock; i += kPartials) {
      add_square(block + i, s0);
      add_square(block + i + lanes, s1);
      add_square(block + i + 2 * lanes, s2);
      add_square(block + i + 3 * lanes, s3);
    }
    hn::StoreU(s0, d, partials + part);
    hn::StoreU(s1, d, partials + part + lanes);
    hn::StoreU(s2, d, partials + part + 2 * lanes);
    hn::StoreU(s3, d, partials + part + 3 * lanes);
  }
  return sum_pairwise(partials);
}

/// `count` values, padded with zeros to a block, whose squares change no sum.
HWY_INLINE void widen_block(DType dtype, const std::byte* from, std::int64_t count,
                            float* HWY_RESTRICT block) {
  alignas(64) std::byte padded[kNormBlock * sizeof(float)];
  const std::byte* source = from;
  if (count < kNormBlock) {
    std::memset(padded, 0, sizeof padded);
    std::memcpy(padded, from, static_cast<std::size_t>(count) * size_of(dtype));
    source = padded;
  }
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  for (std::int64_t i = 0; i < kNormBlock; i += lanes) {
    hn::StoreU(load_floats(dtype, source, i), Floats(), block + i);
  }
}

}  // namespace

void block_sums(DType dtype, const std::byte* values, std::int64_t count, double* sums) {
  alignas(64) float block[kNormBlock];
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  for (std::int64_t begin = 0; begin < count; begin += kNormBlock) {
    widen_block(dtype, values + begin * size, std::min(kNormBlock, count - begin), block);
    sums[begin / kNormBlock] = block_sum(block);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
namespace {
HWY_EXPORT(block_sums);
}  // namespace

void sum_squares(std::span<const std::byte> values, DType dtype, std::span<double> sums,
                 CpuTarget target) {
  const auto count = static_cast<std::int64_t>(values.size() / size_of(dtype));
  const std::int64_t blocks = (count + kNormBlock - 1) / kNormBlock;
  require(dtype != DType::i32 && static_cast<std::int64_t>(sums.size()) == blocks,
          ErrorKind::internal, "{} values of {} have {} norm blocks, room for {} was given.", count,
          name_of(dtype), blocks, sums.size());
  HWY_DISPATCH_TABLE(block_sums)[target.table_index()](dtype, values.data(), count, sums.data());
}

}  // namespace terrace::kernels
#endif
