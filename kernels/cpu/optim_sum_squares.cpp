#include "cpu/optim_loops.h"
#include "terrace/kernels/sum_squares.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/optim_sum_squares.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

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

/// Blocks whose sums are taken in one call of the kernel: their doubles are 512 bytes of stack.
constexpr std::int64_t kBlocksAtOnce = 64;
constexpr std::int64_t kGrain = kBlocksAtOnce * kNormBlock;

bool is_finite_at(const View& values, std::int64_t index) {
  // The exponent's bits, all set in an infinity or NaN.
  if (values.dtype == DType::f32) {
    return (values.data.raw<std::uint32_t>()[index] & 0x7f800000U) != 0x7f800000U;
  }
  const std::uint16_t exponent = values.dtype == DType::bf16 ? 0x7f80U : 0x7c00U;
  return (values.data.raw<std::uint16_t>()[index] & exponent) != exponent;
}

struct Partial {
  ExactSum sum;
  std::int64_t nonfinite = 0;
  std::int64_t first = -1;

  void find(std::int64_t count_found, std::int64_t first_found) {
    nonfinite += count_found;
    if (first_found >= 0 && (first < 0 || first_found < first)) first = first_found;
  }
};

/// Adds elements [begin, end), at most `kGrain` of them.
void add_blocks(CpuTarget target, const View& values, std::int64_t begin, std::int64_t end,
                Partial& partial) {
  double sums[kBlocksAtOnce];
  const auto sum = HWY_DISPATCH_TABLE(block_sums)[target.table_index()];
  sum(values.dtype, values.offset(begin).data.raw(), end - begin, sums);
  for (std::int64_t block = begin; block < end; block += kNormBlock) {
    const double of_block = sums[(block - begin) / kNormBlock];
    if (std::isfinite(of_block)) {
      partial.sum.add(of_block);
      continue;
    }
    for (std::int64_t i = block; i < std::min(block + kNormBlock, end); ++i) {
      if (!is_finite_at(values, i)) partial.find(1, i);
    }
  }
}

}  // namespace

void run(const Loops& loops, const SumSquaresArgs& args) {
  std::mutex mutex;
  Partial all;
  loops.workers.parallel_for(args.count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    Partial partial;
    for (std::int64_t i = begin; i < end; i += kGrain) {
      add_blocks(loops.target, args.values, i, std::min(i + kGrain, end), partial);
    }
    const std::scoped_lock lock(mutex);
    all.sum.add(partial.sum);
    all.find(partial.nonfinite, partial.first);
  });
  *args.result.raw<SquareSums>() = {all.sum.digits(), all.nonfinite, all.first};
}

}  // namespace terrace::kernels
#endif
