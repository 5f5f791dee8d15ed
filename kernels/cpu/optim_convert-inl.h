// Vectors of FP32 from and to memory of any floating dtype, the same bits on every target. No guard
// of the usual kind: included once a target.
#if defined(TERRACE_OPTIM_CONVERT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_OPTIM_CONVERT_INL
#undef TERRACE_OPTIM_CONVERT_INL
#else
#define TERRACE_OPTIM_CONVERT_INL
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "terrace/core/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes: what the tiles of the stochastic rounding and of the norm divide by.
using Floats = hn::CappedTag<float, 16>;
using Words = hn::RebindToUnsigned<Floats>;
using Ints = hn::RebindToSigned<Floats>;
using Halves = hn::Rebind<std::uint16_t, Floats>;
using FloatV = hn::Vec<Floats>;
using WordV = hn::Vec<Words>;

/// The magnitude of an infinity; larger magnitudes are NaN. Signed, because comparisons of signed
/// integers are one instruction everywhere.
constexpr std::int32_t kInfinity = 0x7f800000;

HWY_INLINE WordV magnitude_of(WordV bits) { return hn::And(bits, hn::Set(Words(), 0x7fffffffU)); }

/// The 16-bit values at `from`, each in the lower half of a word.
HWY_INLINE WordV load_halves(const void* from, std::int64_t index) {
  const auto* at = static_cast<const std::uint16_t*>(from) + index;
  return hn::PromoteTo(Words(), hn::LoadU(Halves(), at));
}

HWY_INLINE FloatV float_from_f16(WordV half) {
  const Floats d;
  const WordV shifted = hn::ShiftLeft<13>(hn::And(half, hn::Set(Words(), 0x7fffU)));
  // Multiplying by 2^112 re-biases the exponent and normalizes a subnormal, exactly.
  const WordV scaled = hn::BitCast(Words(), hn::Mul(hn::BitCast(d, shifted), hn::Set(d, 0x1p112F)));
  const auto is_special = hn::Gt(hn::BitCast(Ints(), shifted), hn::Set(Ints(), 0x0f7fffff));
  const WordV special = hn::IfThenElseZero(hn::RebindMask(Words(), is_special),
                                           hn::Set(Words(), std::uint32_t{kInfinity}));
  const WordV sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(Words(), 0x8000U)));
  return hn::BitCast(d, hn::Or(hn::Or(scaled, special), sign));
}

/// As `to_f16` in core/dtype.h, in the lower half of a word.
HWY_INLINE WordV f16_from_float(FloatV value) {
  const Floats d;
  const Words du;
  const Ints di;
  const WordV bits = hn::BitCast(du, value);
  const WordV magnitude = magnitude_of(bits);
  const auto magnitude_i = hn::BitCast(di, magnitude);
  const WordV odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1U));
  const WordV normal =
      hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, odd), hn::Set(du, 0xfffU - (112U << 23))));
  const WordV subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F))),
              hn::Set(du, 0x3f000000U));
  const auto is_subnormal = hn::Lt(magnitude_i, hn::Set(di, 0x38800000));
  const auto is_infinite = hn::Gt(magnitude_i, hn::Set(di, 0x477fefff));
  const auto is_nan = hn::Gt(magnitude_i, hn::Set(di, kInfinity));
  const WordV payload =
      hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3ffU)), hn::Set(du, 0x7e00U));
  WordV half = hn::IfThenElse(hn::RebindMask(du, is_subnormal), subnormal, normal);
  half = hn::IfThenElse(hn::RebindMask(du, is_infinite), hn::Set(du, 0x7c00U), half);
  half = hn::IfThenElse(hn::RebindMask(du, is_nan), payload, half);
  return hn::Or(half, hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000U)));
}

HWY_INLINE FloatV load_floats(DType dtype, const void* from, std::int64_t index) {
  const Floats d;
  switch (dtype) {
    case DType::bf16:
      return hn::BitCast(d, hn::ShiftLeft<16>(load_halves(from, index)));
    case DType::f16:
      return float_from_f16(load_halves(from, index));
    default:
      return hn::LoadU(d, static_cast<const float*>(from) + index);
  }
}

/// As `to_parameter_bf16` in core/dtype.h, in the lower half of a word. `is_nan` is of `bits`.
template <class Mask>
HWY_INLINE WordV parameter_bf16(WordV bits, Mask is_nan) {
  const Words du;
  const WordV rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Set(du, 0x8000U)));
  const WordV nan =
      hn::Or(hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000U)), hn::Set(du, 0x7fc0U));
  return hn::IfThenElse(is_nan, nan, rounded);
}

HWY_INLINE auto nan_mask(FloatV value) { return hn::RebindMask(Words(), hn::IsNaN(value)); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
