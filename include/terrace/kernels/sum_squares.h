#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/core/dtype.h"
#include "terrace/kernels/cpu_target.h"

namespace terrace::kernels {

/// Elements whose squares are summed by one fixed tree. It divides the alignment of every tensor in
/// a flat parameter, so every cut of the flat into shards and pages falls between two blocks.
inline constexpr std::int64_t kNormBlock = 128;

/// Writes the sum of squares of each block of `kNormBlock` values (the last one may be shorter) to
/// `sums`, in double. Element i of a block belongs to partial sum i mod 32; these are summed in
/// order of i, then pairwise, so the bits are the same on every target. The square of an FP32
/// number is finite in double: a sum is finite exactly if all its inputs are. `values` has dtype
/// f32, bf16 or f16. Errors: internal, when `sums` has not one element a block. Threads: the
/// calling one.
void sum_squares(std::span<const std::byte> values, DType dtype, std::span<double> sums,
                 CpuTarget target = {});

}  // namespace terrace::kernels
