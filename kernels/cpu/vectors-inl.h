// What the operations' loops share: vectors of FP32 from and to f32 or bf16 memory, whole or cut
// short. No guard of the usual kind: included once a target.
#if defined(TERRACE_VECTORS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_VECTORS_INL
#undef TERRACE_VECTORS_INL
#else
#define TERRACE_VECTORS_INL
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "terrace/core/dtype.h"
#include "terrace/device/memory.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using Vec = hn::Vec<F32>;

static_assert(sizeof(Bf16) == sizeof(std::uint16_t));

HWY_INLINE std::int64_t lanes() { return static_cast<std::int64_t>(hn::Lanes(F32())); }

/// How much of a vector a step of `each_vector` has: all of it, or its first lanes.
struct Whole {};
struct Part {
  std::size_t lanes;
};

HWY_INLINE Vec load(const float* from, Whole) { return hn::LoadU(F32(), from); }
HWY_INLINE Vec load(const Bf16* from, Whole) {
  const auto* bits = reinterpret_cast<const std::uint16_t*>(from);
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), bits))));
}

HWY_INLINE void store(Vec value, float* to, Whole) { hn::StoreU(value, F32(), to); }
/// As `to_bf16` in core/dtype.h.
HWY_INLINE void store(Vec value, Bf16* to, Whole) {
  const U32 du;
  const auto bits = hn::BitCast(du, value);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto even = hn::Add(hn::Set(du, 0x7fffU), hn::And(upper, hn::Set(du, 1U)));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, even));
  const auto nan = hn::Or(upper, hn::Set(du, 0x40U));
  const auto half = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), nan, rounded);
  hn::StoreU(hn::TruncateTo(U16(), half), U16(), reinterpret_cast<std::uint16_t*>(to));
}

/// The lanes that are not there are zero, and are not written.
template <class T>
HWY_INLINE Vec load(const T* from, Part part) {
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(buffer, from, part.lanes * sizeof(T));
  return load(static_cast<const T*>(buffer), Whole());
}
template <class T>
HWY_INLINE void store(Vec value, T* to, Part part) {
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(float)];
  store(value, static_cast<T*>(buffer), Whole());
  std::memcpy(to, buffer, part.lanes * sizeof(T));
}

/// `value` in the lanes that are there, zero in the others.
HWY_INLINE Vec zero_rest(Vec value, Whole) { return value; }
HWY_INLINE Vec zero_rest(Vec value, Part part) {
  return hn::IfThenElseZero(hn::FirstN(F32(), part.lanes), value);
}
HWY_INLINE Vec fill_rest(Vec value, float /*rest*/, Whole) { return value; }
HWY_INLINE Vec fill_rest(Vec value, float rest, Part part) {
  return hn::IfThenElse(hn::FirstN(F32(), part.lanes), value, hn::Set(F32(), rest));
}

/// Calls body(i, Whole or Part) for each vector of [0, count).
template <class Body>
HWY_INLINE void each_vector(std::int64_t count, const Body& body) {
  const std::int64_t step = lanes();
  std::int64_t i = 0;
  for (; i + step <= count; i += step) body(i, Whole());
  if (i < count) body(i, Part{static_cast<std::size_t>(count - i)});
}

HWY_INLINE float sum_lanes(Vec value) { return hn::GetLane(hn::SumOfLanes(F32(), value)); }
HWY_INLINE float max_lanes(Vec value) { return hn::GetLane(hn::MaxOfLanes(F32(), value)); }

/// exp(x), to one unit in the last place. A NaN stays one, which Highway's own does not promise: a
/// lost NaN would hide that a step must be skipped.
HWY_INLINE Vec exp_of(Vec x) { return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(F32(), x)); }

/// exp(x) of x <= 80: below -80 it flushes towards exp(-80), so no result is subnormal or infinite.
HWY_INLINE Vec exp_clamped(Vec x) {
  const F32 d;
  return hn::Exp(d, hn::Max(hn::Min(x, hn::Set(d, 80.0F)), hn::Set(d, -80.0F)));
}

/// 1 / (1 + exp(-x)) and its complement, neither by cancellation.
struct Sigmoid {
  Vec value;
  Vec complement;
};
HWY_INLINE Sigmoid sigmoid(Vec x) {
  const F32 d;
  const Vec e = exp_clamped(hn::Neg(x));
  const Vec value = hn::Div(hn::Set(d, 1.0F), hn::Add(hn::Set(d, 1.0F), e));
  return {value, hn::Mul(e, value)};
}

/// Calls body(T()) with T = float or Bf16 for the dtype.
template <class Body>
HWY_INLINE void with_type(DType dtype, const Body& body) {
  if (dtype == DType::bf16) {
    body(Bf16());
  } else {
    body(float());
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
