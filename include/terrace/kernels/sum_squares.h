#pragma once

#include <array>
#include <cstdint>

#include "terrace/kernels/exact_sum.h"

namespace terrace::kernels {

/// Elements whose squares are summed by one fixed tree. It divides the alignment of every tensor in
/// a flat parameter, so every cut of the flat into shards and pages falls between two blocks.
/// Element i of a block, in double, belongs to partial sum i mod 32; these are summed in order of
/// i, then pairwise (i and i + 16, then i and i + 8, ...), so the bits are the same on every
/// device. The last block of a range may be shorter.
inline constexpr std::int64_t kNormBlock = 128;

/// The squares of a range of values that starts at a multiple of `kNormBlock`. The square of an
/// FP32 number is finite in double, so a block's sum is finite exactly if all its values are.
struct SquareSums {
  std::array<double, ExactSum::kLimbs> digits{};  ///< `ExactSum` of the blocks' sums
  std::int64_t nonfinite = 0;                     ///< values; their blocks are left out
  std::int64_t first = -1;                        ///< position of the first of them; -1: none
};

}  // namespace terrace::kernels
