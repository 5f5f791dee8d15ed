#include <algorithm>
#include <cmath>

#include "cpu/loops.h"
#include "terrace/core/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/cross_entropy.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

template <class T>
float row_max(const T* logits, std::int64_t count) {
  Vec greatest = hn::Set(F32(), -HUGE_VALF);
  each_vector(count, [&](std::int64_t i, auto part) HWY_ATTR {
    greatest = hn::Max(greatest, fill_rest(load(logits + i, part), -HUGE_VALF, part));
  });
  return max_lanes(greatest);
}

/// The sum of exp(logit - greatest). Two levels of partial sums keep the error of long rows small.
template <class T>
double row_sum(const T* logits, std::int64_t count, float greatest) {
  constexpr std::int64_t kRun = 4096;
  const F32 d;
  double total = 0;
  for (std::int64_t first = 0; first < count; first += kRun) {
    Vec sum = hn::Zero(d);
    const T* run = logits + first;
    each_vector(std::min(kRun, count - first), [&](std::int64_t i, auto part) HWY_ATTR {
      const Vec e = exp_of(hn::Sub(load(run + i, part), hn::Set(d, greatest)));
      sum = hn::Add(sum, zero_rest(e, part));
    });
    total += static_cast<double>(sum_lanes(sum));
  }
  return total;
}

/// Ascending, so a gradient row of no more bytes may overwrite its logits.
template <class T, class G>
void write_gradient(const T* logits, G* gradient, std::int64_t count, float log_sum, float scale) {
  const F32 d;
  each_vector(count, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec p = exp_of(hn::Sub(load(logits + i, part), hn::Set(d, log_sum)));
    store(hn::Mul(p, hn::Set(d, scale)), gradient + i, part);
  });
}

template <class T, class G>
void cross_entropy_row(const CrossEntropyArgs& args, std::int64_t row) {
  const std::int64_t count = args.vocabulary;
  const std::int32_t target = args.targets.raw<std::int32_t>()[row];
  float* loss = args.losses.raw<float>() + row;
  G* gradient = args.gradient ? args.gradient.data.raw<G>() + row * args.gradient_stride : nullptr;
  if (target == -1) {
    *loss = 0;
    if (gradient != nullptr) std::fill_n(gradient, count, G());
    return;
  }
  require(target >= 0 && target < count, ErrorKind::data,
          "Row {} of the targets is {}; a target is a token in [0, {}), or -1 to be left out.", row,
          target, count);
  const T* logits = args.logits.data.raw<T>() + row * args.logits_stride;
  const float greatest = row_max(logits, count);
  const double log_sum = std::log(row_sum(logits, count, greatest)) + double{greatest};
  HWY_ALIGN float at_target[HWY_MAX_BYTES / sizeof(float)];
  store(load(logits + target, Part{1}), at_target, Whole());
  *loss = static_cast<float>(log_sum - double{at_target[0]});
  if (gradient == nullptr) return;
  write_gradient(logits, gradient, count, static_cast<float>(log_sum), args.scale);
  // (p - 1) * scale from p = exp(-loss), not from the rounded p * scale.
  const double p_less_one = std::expm1(-(log_sum - double{at_target[0]}));
  store(hn::Set(F32(), static_cast<float>(p_less_one) * args.scale), gradient + target, Part{1});
}

}  // namespace

void cross_entropy_some(const CrossEntropyArgs& args, std::int64_t begin, std::int64_t end) {
  with_type(args.logits.dtype, [&](auto type) HWY_ATTR {
    with_type(args.gradient.dtype, [&](auto gradient) HWY_ATTR {
      for (std::int64_t row = begin; row < end; ++row) {
        cross_entropy_row<decltype(type), decltype(gradient)>(args, row);
      }
    });
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
namespace {
HWY_EXPORT(cross_entropy_some);
}  // namespace

void run(const Loops& loops, const CrossEntropyArgs& args) {
  const auto kernel = HWY_DISPATCH_TABLE(cross_entropy_some)[loops.target.table_index()];
  loops.workers.parallel_for(args.rows, std::max<std::int64_t>(1, 8192 / args.vocabulary),
                             [&](std::int64_t b, std::int64_t e) { kernel(args, b, e); });
}

void run(const Loops& /*loops*/, const SumArgs& args) {
  // Runs of 256 in order, then the runs in order: fixed by `count` alone.
  const float* values = args.values.raw<float>();
  double total = 0;
  for (std::int64_t first = 0; first < args.count; first += 256) {
    double run = 0;
    const std::int64_t end = std::min(args.count, first + 256);
    for (std::int64_t i = first; i < end; ++i) run += static_cast<double>(values[i]);
    total += run;
  }
  *args.sum.raw<double>() = total;
}

}  // namespace terrace::kernels
#endif
