#pragma once

#include <cstddef>
#include <cstdint>

#include "terrace/core/dtype.h"
#include "terrace/device/memory.h"

namespace terrace::kernels {

/// The recurrence. All arithmetic is FP32 on the master; `Coefficients` has the numbers.
///
///     g = gradient_scale * gradient                         (adam, adagrad: + l2 * p)
///     adamw, adam   m += one_minus_beta1 * (g - m)
///                   v  = beta2 * v + (one_minus_beta2 * g) * g
///                   p -= decay * p + (step_size * m) / (sqrt(v) * inverse_root_bias2 + eps)
///     adagrad       v += g * g
///                   p -= (step_size * g) / (sqrt(v) + eps)
///     lion          p -= decay * p + step_size * sign(m + one_minus_beta1 * (g - m))
///                   m += one_minus_beta2 * (g - m)
///
/// The decay is subtracted rather than multiplied in as (1 - decay), whose rounding would act on
/// the whole of p in every step and in the same direction (measured over 1,000 steps: at most 116
/// units in the last place from the exact result instead of 590). Source: Loshchilov and Hutter,
/// "Decoupled Weight Decay Regularization", 2019, algorithm 2, in PyTorch's form (eps outside the
/// root, after the bias correction); Duchi et al., 2011; Chen et al., "Symbolic Discovery of
/// Optimization Algorithms", 2023, program 1.
enum class UpdateRule : std::uint8_t { adamw, adam, adagrad, lion };

/// `fp32`: the master is 4 bytes. `split`: the master's bits are the bf16 parameter (its upper
/// half, rounded by adding 0x8000) and a 16-bit remainder (its lower half), see `split_master.h`.
enum class MasterFormat : std::uint8_t { fp32, split };

/// Bytes of an element of the array `master`.
[[nodiscard]] constexpr std::size_t size_of(MasterFormat format) {
  return format == MasterFormat::split ? 2 : 4;
}

/// How the values of a chunk are stored. Moments are f32, or bf16 with stochastic rounding;
/// gradient and parameter f32, bf16 or f16; `split` goes with a bf16 parameter only.
struct StateLayout {
  MasterFormat master = MasterFormat::fp32;
  DType moments = DType::f32;
  DType gradient = DType::bf16;
  DType parameter = DType::bf16;
};

/// What a step reads: `count` values of each kind, without padding. `master` holds the remainder in
/// `split`; `parameter` is read in `split` only. `exp_avg` is empty for Adagrad and `exp_avg_sq`
/// for Lion. Alignment to the element is enough.
struct ChunkSource {
  device::Span<const std::byte> master;
  device::Span<const std::byte> exp_avg;
  device::Span<const std::byte> exp_avg_sq;
  device::Span<const std::byte> parameter;
  device::Span<const std::byte> gradient;
};

/// What a step writes. Each span is its source exactly (in place) or overlaps no source at all (out
/// of place). In `fp32` an empty `parameter` is not written.
struct ChunkTarget {
  device::Span<std::byte> master;
  device::Span<std::byte> exp_avg;
  device::Span<std::byte> exp_avg_sq;
  device::Span<std::byte> parameter;
};

/// A contiguous range of parameters. Non-owning.
struct ChunkViews {
  std::int64_t count = 0;        ///< parameters
  std::int64_t first_index = 0;  ///< number of the first one in the whole model; keys the rounding
  ChunkSource source;
  ChunkTarget target;
};

/// The numbers of one step, each computed in double and rounded once.
struct Coefficients {
  float gradient_scale = 1;  ///< clip factor / loss scale
  float l2 = 0;              ///< decay added to the gradient (adam, adagrad)
  float decay = 0;           ///< learning rate * weight decay (adamw, lion)
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float inverse_root_bias2 = 1;  ///< 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float step_size = 0;     ///< learning rate, for Adam / (1 - beta1^t)
  std::uint64_t seed = 0;  ///< of the stochastic rounding of bf16 moments
  std::uint64_t step = 0;  ///< likewise
};

[[nodiscard]] constexpr bool uses_exp_avg(UpdateRule rule) { return rule != UpdateRule::adagrad; }
[[nodiscard]] constexpr bool uses_exp_avg_sq(UpdateRule rule) { return rule != UpdateRule::lion; }

}  // namespace terrace::kernels
