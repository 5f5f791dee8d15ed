#include <cmath>

#include "cpu/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rotary.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

struct Turn {
  Vec cosine;
  Vec sine;
};

/// The turns of frequencies [first, first + lanes) at a position. Frequency and angle are rounded
/// to FP32 as the reference does; cosine and sine are taken in double, because the arguments reach
/// thousands of radians.
HWY_INLINE Turn turn_at(const RotaryArgs& args, std::int64_t position, std::int64_t first) {
  const hn::ScalableTag<double> dd;
  const hn::Rebind<float, decltype(dd)> half;
  HWY_ALIGN float cosines[HWY_MAX_BYTES / sizeof(float)];
  HWY_ALIGN float sines[HWY_MAX_BYTES / sizeof(float)];
  const auto step = static_cast<std::int64_t>(hn::Lanes(dd));
  const double exponent =
      -2.0 * std::log(static_cast<double>(args.theta)) / static_cast<double>(args.head_size);
  for (std::int64_t i = 0; i < lanes(); i += step) {
    const auto index = hn::Iota(dd, static_cast<double>(first + i));
    const auto frequency = hn::DemoteTo(half, hn::Exp(dd, hn::Mul(index, hn::Set(dd, exponent))));
    const auto angle_f32 = hn::Mul(frequency, hn::Set(half, static_cast<float>(position)));
    const auto angle = hn::PromoteTo(dd, angle_f32);
    hn::StoreU(hn::DemoteTo(half, hn::Cos(dd, angle)), half, cosines + i);
    hn::StoreU(hn::DemoteTo(half, hn::Sin(dd, angle)), half, sines + i);
  }
  const F32 d;
  const Vec sine = hn::Load(d, sines);
  return {hn::Load(d, cosines), args.inverse ? hn::Neg(sine) : sine};
}

template <class T>
void rotary_position(const RotaryArgs& args, std::int64_t position) {
  const std::int64_t half = args.head_size / 2;
  each_vector(half, [&](std::int64_t i, auto part) HWY_ATTR {
    const Turn turn = turn_at(args, position, i);
    for (std::int64_t row = 0; row < args.rows; ++row) {
      T* head = args.values.data.raw<T>() + (row * args.sequence + position) * args.stride + i;
      for (std::int64_t h = 0; h < args.heads; ++h, head += args.head_size) {
        const Vec x = load(head, part);
        const Vec y = load(head + half, part);
        store(hn::NegMulAdd(y, turn.sine, hn::Mul(x, turn.cosine)), head, part);
        store(hn::MulAdd(x, turn.sine, hn::Mul(y, turn.cosine)), head + half, part);
      }
    }
  });
}

}  // namespace

void rotary_some(const RotaryArgs& args, std::int64_t begin, std::int64_t end) {
  with_type(args.values.dtype, [&](auto type) HWY_ATTR {
    for (std::int64_t position = begin; position < end; ++position) {
      rotary_position<decltype(type)>(args, position);
    }
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
namespace {
HWY_EXPORT(rotary_some);
}  // namespace

void run(const Loops& loops, const RotaryArgs& args) {
  const auto kernel = HWY_DISPATCH_TABLE(rotary_some)[loops.target.table_index()];
  loops.workers.parallel_for(args.sequence, 4,
                             [&](std::int64_t b, std::int64_t e) { kernel(args, b, e); });
}

}  // namespace terrace::kernels
#endif
