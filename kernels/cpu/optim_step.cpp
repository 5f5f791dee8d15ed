#include "cpu/optim_step.h"

#include "cpu/optim_loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/optim_step.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "cpu/optim_convert-inl.h"
#include "cpu/optim_prefetch-inl.h"
#include "cpu/optim_random-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

/// One vector of a chunk on its way through the step.
struct Lanes {
  FloatV gradient;
  FloatV master;
  FloatV exp_avg;
  FloatV exp_avg_sq;
};

template <MasterFormat kMaster>
HWY_INLINE FloatV load_master(const StepArrays& arrays, std::int64_t i) {
  if constexpr (kMaster == MasterFormat::fp32) {
    return hn::LoadU(Floats(), static_cast<const float*>(arrays.master_in) + i);
  } else {
    // Adding the remainder as a signed number takes off the one that the rounding added.
    const hn::RebindToSigned<Halves> dh;
    const auto* at = static_cast<const std::int16_t*>(arrays.master_in) + i;
    const auto remainder = hn::PromoteTo(Ints(), hn::LoadU(dh, at));
    const WordV upper = hn::ShiftLeft<16>(load_halves(arrays.parameter_in, i));
    return hn::BitCast(Floats(), hn::Add(upper, hn::BitCast(Words(), remainder)));
  }
}

HWY_INLINE void store_halves(WordV words, void* to, std::int64_t index, bool stream) {
  const Halves dh;
  auto* at = static_cast<std::uint16_t*>(to) + index;
  // Every value is below 2^16, so the saturation of the narrowing does nothing.
  const auto halves = hn::DemoteTo(dh, hn::BitCast(Ints(), words));
  // A stream of less than 16 bytes would write 16.
  if (stream && hn::Lanes(dh) >= 8) {
    hn::Stream(halves, dh, at);
  } else {
    hn::StoreU(halves, dh, at);
  }
}

HWY_INLINE void store_parameter(FloatV master, const StepJob& job, const StepArrays& arrays,
                                std::int64_t i) {
  if (arrays.parameter_out == nullptr) return;
  const Floats d;
  switch (job.layout.parameter) {
    case DType::bf16: {
      const WordV bits = hn::BitCast(Words(), master);
      const WordV half = parameter_bf16(bits, nan_mask(master));
      return store_halves(half, arrays.parameter_out, i, job.stream_parameter);
    }
    case DType::f16:
      return store_halves(f16_from_float(master), arrays.parameter_out, i, job.stream_parameter);
    default:
      return hn::StoreU(master, d, static_cast<float*>(arrays.parameter_out) + i);
  }
}

template <MasterFormat kMaster>
HWY_INLINE void store_master(FloatV master, const StepJob& job, const StepArrays& arrays,
                             std::int64_t i) {
  const Words du;
  if constexpr (kMaster == MasterFormat::fp32) {
    hn::StoreU(master, Floats(), static_cast<float*>(arrays.master_out) + i);
    store_parameter(master, job, arrays, i);
  } else {
    const WordV bits = hn::BitCast(du, master);
    const auto is_nan = nan_mask(master);
    const WordV remainder =
        hn::IfThenElse(is_nan, hn::Zero(du), hn::And(bits, hn::Set(du, 0xffffU)));
    store_halves(remainder, arrays.master_out, i, false);
    store_halves(parameter_bf16(bits, is_nan), arrays.parameter_out, i, false);
  }
}

template <DType kMoment>
HWY_INLINE void store_moment(FloatV moment, void* to, std::int64_t i, WordV random) {
  if constexpr (kMoment == DType::f32) {
    hn::StoreU(moment, Floats(), static_cast<float*>(to) + i);
  } else {
    store_halves(stochastic_bf16(moment, random), to, i, false);
  }
}

/// m + weight * (g - m)
HWY_INLINE FloatV moved_towards(FloatV m, FloatV g, float weight) {
  return hn::Add(m, hn::Mul(hn::Set(Floats(), weight), hn::Sub(g, m)));
}

/// p - (decay * p + update)
HWY_INLINE FloatV decayed_and_moved(FloatV p, float decay, FloatV update) {
  return hn::Sub(p, hn::Add(hn::Mul(hn::Set(Floats(), decay), p), update));
}

template <UpdateRule kRule>
HWY_INLINE void apply(const Coefficients& c, Lanes& x) {
  const Floats d;
  FloatV g = hn::Mul(x.gradient, hn::Set(d, c.gradient_scale));
  if constexpr (kRule == UpdateRule::adam || kRule == UpdateRule::adagrad) {
    if (c.l2 != 0) g = hn::Add(g, hn::Mul(hn::Set(d, c.l2), x.master));
  }
  const FloatV step_size = hn::Set(d, c.step_size);
  const FloatV eps = hn::Set(d, c.eps);
  if constexpr (kRule == UpdateRule::adagrad) {
    x.exp_avg_sq = hn::Add(x.exp_avg_sq, hn::Mul(g, g));
    const FloatV denominator = hn::Add(hn::Sqrt(x.exp_avg_sq), eps);
    x.master = hn::Sub(x.master, hn::Div(hn::Mul(step_size, g), denominator));
  } else if constexpr (kRule == UpdateRule::lion) {
    const FloatV direction = moved_towards(x.exp_avg, g, c.one_minus_beta1);
    const FloatV zero = hn::Zero(d);
    const FloatV update = hn::Sub(hn::IfThenElseZero(hn::Gt(direction, zero), step_size),
                                  hn::IfThenElseZero(hn::Lt(direction, zero), step_size));
    x.master = decayed_and_moved(x.master, c.decay, update);
    x.exp_avg = moved_towards(x.exp_avg, g, c.one_minus_beta2);
  } else {
    x.exp_avg = moved_towards(x.exp_avg, g, c.one_minus_beta1);
    const FloatV weighted = hn::Mul(hn::Set(d, c.one_minus_beta2), g);
    x.exp_avg_sq = hn::Add(hn::Mul(hn::Set(d, c.beta2), x.exp_avg_sq), hn::Mul(weighted, g));
    const FloatV root = hn::Mul(hn::Sqrt(x.exp_avg_sq), hn::Set(d, c.inverse_root_bias2));
    const FloatV update = hn::Div(hn::Mul(step_size, x.exp_avg), hn::Add(root, eps));
    x.master = decayed_and_moved(x.master, c.decay, update);
  }
}

template <UpdateRule kRule, MasterFormat kMaster, DType kMoment>
HWY_INLINE Lanes load_vector(const StepJob& job, const StepArrays& arrays, std::int64_t i) {
  Lanes x;
  x.gradient = load_floats(job.layout.gradient, arrays.gradient, i);
  x.master = load_master<kMaster>(arrays, i);
  x.exp_avg = x.exp_avg_sq = hn::Zero(Floats());
  if constexpr (uses_exp_avg(kRule)) x.exp_avg = load_floats(kMoment, arrays.exp_avg_in, i);
  if constexpr (uses_exp_avg_sq(kRule)) {
    x.exp_avg_sq = load_floats(kMoment, arrays.exp_avg_sq_in, i);
  }
  return x;
}

/// `random` points at the words of these elements (bf16 moments only).
template <UpdateRule kRule, MasterFormat kMaster, DType kMoment>
HWY_INLINE void store_vector(const Lanes& x, const StepJob& job, const StepArrays& arrays,
                             std::int64_t i, const std::uint32_t* random) {
  const Words du;
  store_master<kMaster>(x.master, job, arrays, i);
  WordV words = hn::Zero(du);
  if constexpr (kMoment == DType::bf16) words = hn::LoadU(du, random);
  if constexpr (uses_exp_avg(kRule)) {
    store_moment<kMoment>(x.exp_avg, arrays.exp_avg_out, i, hn::And(words, hn::Set(du, 0xffffU)));
  }
  if constexpr (uses_exp_avg_sq(kRule)) {
    store_moment<kMoment>(x.exp_avg_sq, arrays.exp_avg_sq_out, i, hn::ShiftRight<16>(words));
  }
}

/// The whole blocks of [begin, end), in a range that goes on to `last`. `random` is indexed by
/// i - begin.
template <UpdateRule kRule, MasterFormat kMaster, DType kMoment>
void step_blocks(const StepJob& job, std::int64_t begin, std::int64_t end, std::int64_t last,
                 const std::uint32_t* random) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  // Copies that no store can alias, so that they stay in registers.
  const StepArrays arrays = job.arrays;
  const Coefficients coefficients = job.coefficients;
  const auto words_of = [&](std::int64_t i) {
    return kMoment == DType::bf16 ? random + (i - begin) : nullptr;
  };
  const std::size_t gradient_size = size_of(job.layout.gradient);
  for (std::int64_t i = begin; i < end; i += kStepBlock) {
    if (i + kPrefetchAhead + kStepBlock <= last) {
      prefetch_block<kRule, kMaster, kMoment>(arrays, gradient_size, i + kPrefetchAhead);
    }
    // Two vectors at a time: the loads of both come before the divisions and square roots of
    // either.
    for (std::int64_t v = i; v < i + kStepBlock; v += 2 * lanes) {
      Lanes x = load_vector<kRule, kMaster, kMoment>(job, arrays, v);
      Lanes y = load_vector<kRule, kMaster, kMoment>(job, arrays, v + lanes);
      apply<kRule>(coefficients, x);
      apply<kRule>(coefficients, y);
      store_vector<kRule, kMaster, kMoment>(x, job, arrays, v, words_of(v));
      store_vector<kRule, kMaster, kMoment>(y, job, arrays, v + lanes, words_of(v + lanes));
    }
  }
}

/// Elements [begin, end), the last few through a padded copy: the same instructions as in the
/// middle, and no access past the end.
template <UpdateRule kRule, MasterFormat kMaster, DType kMoment>
void step_run(const StepJob& job, std::int64_t begin, std::int64_t end, std::int64_t last,
              const std::uint32_t* random) {
  const std::int64_t middle = begin + (end - begin) / kStepBlock * kStepBlock;
  step_blocks<kRule, kMaster, kMoment>(job, begin, middle, last, random);
  if (middle == end) return;
  PaddedBlock rest(job, middle, end - middle);
  const std::uint32_t* words = kMoment == DType::bf16 ? random + (middle - begin) : nullptr;
  step_blocks<kRule, kMaster, kMoment>(rest.job(), 0, kStepBlock, kStepBlock, words);
  rest.write_back();
}

template <UpdateRule kRule, MasterFormat kMaster, DType kMoment>
void step_range(const StepJob& job, std::int64_t begin, std::int64_t end) {
  if constexpr (kMoment == DType::f32) {
    step_run<kRule, kMaster, kMoment>(job, begin, end, end, nullptr);
  } else {
    // Several tiles at once: their calls do not depend on each other and overlap in the CPU.
    constexpr std::int64_t kTiles = 4;
    alignas(64)
        std::uint32_t words[kTiles * kTile + kStepBlock] = {};  // a tail reads a whole block
    const PhiloxKey key{job.coefficients.seed, job.coefficients.step};
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t index = job.first_index + i;
      const std::int64_t tile = index / kTile;
      const std::int64_t stop = std::min(end, (tile + kTiles) * kTile - job.first_index);
      for (std::int64_t t = 0; (tile + t) * kTile < job.first_index + stop; ++t) {
        fill_tile(tile + t, key, words + t * kTile);
      }
      step_run<kRule, kMaster, kMoment>(job, i, stop, end, words + index % kTile);
      i = stop;
    }
  }
  hwy::FlushStream();
}

template <UpdateRule kRule>
void step_rule(const StepJob& job, std::int64_t begin, std::int64_t end) {
  const bool split = job.layout.master == MasterFormat::split;
  if (job.layout.moments == DType::f32) {
    if (split) return step_range<kRule, MasterFormat::split, DType::f32>(job, begin, end);
    return step_range<kRule, MasterFormat::fp32, DType::f32>(job, begin, end);
  }
  if (split) return step_range<kRule, MasterFormat::split, DType::bf16>(job, begin, end);
  step_range<kRule, MasterFormat::fp32, DType::bf16>(job, begin, end);
}

}  // namespace

void step(UpdateRule rule, const StepJob& job, std::int64_t begin, std::int64_t end) {
  switch (rule) {
    case UpdateRule::adamw:  // differs from adam in its coefficients only: l2 is 0
    case UpdateRule::adam:
      return step_rule<UpdateRule::adam>(job, begin, end);
    case UpdateRule::adagrad:
      return step_rule<UpdateRule::adagrad>(job, begin, end);
    case UpdateRule::lion:
      return step_rule<UpdateRule::lion>(job, begin, end);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
namespace {

HWY_EXPORT(step);

}  // namespace

void run(const Loops& loops, const StepArgs& args) {
  StepJob job = make_step_job(args.layout, args.chunk);
  job.coefficients = args.coefficients;
  if (args.rule == UpdateRule::adamw) job.coefficients.l2 = 0;
  const auto kernel = HWY_DISPATCH_TABLE(step)[loops.target.table_index()];
  loops.workers.parallel_for(
      args.chunk.count, kStepGrain,
      [&](std::int64_t begin, std::int64_t end) { kernel(args.rule, job, begin, end); });
}

}  // namespace terrace::kernels
#endif
