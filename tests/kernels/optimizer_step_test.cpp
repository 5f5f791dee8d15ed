#include "terrace/kernels/optimizer_step.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <numeric>
#include <string>

#include "core/sanitized.h"
#include "kernels/optimizer_reference.h"
#include "terrace/core/error.h"

namespace terrace::kernels {
namespace {

using reference::Bytes;
using reference::State;

constexpr UpdateRule kRules[] = {UpdateRule::adamw, UpdateRule::adam, UpdateRule::adagrad,
                                 UpdateRule::lion};
constexpr std::int64_t kFirstIndex = (std::int64_t{1} << 33) + 5;  // not at a tile's start

Coefficients some_coefficients(UpdateRule rule) {
  Coefficients c;
  c.gradient_scale = 0.371F;
  c.l2 = rule == UpdateRule::adam || rule == UpdateRule::adagrad ? 0.02F : 0.0F;
  c.decay = rule == UpdateRule::adamw || rule == UpdateRule::lion ? 9e-4F : 0.0F;
  c.one_minus_beta1 = 0.1F;
  c.beta2 = 0.999F;
  c.one_minus_beta2 = 0.001F;
  c.inverse_root_bias2 = 12.93F;
  c.eps = 1e-8F;
  c.step_size = 3.1e-3F;
  c.seed = 0x123456789abcdefU;
  c.step = 77;
  return c;
}

std::string describe(UpdateRule rule, StateLayout layout) {
  return fmt::format("rule {} split {} moments {} gradient {} parameter {}", static_cast<int>(rule),
                     layout.master == MasterFormat::split, name_of(layout.moments),
                     name_of(layout.gradient), name_of(layout.parameter));
}

std::vector<StateLayout> all_layouts() {
  std::vector<StateLayout> layouts;
  for (const DType moments : {DType::f32, DType::bf16}) {
    for (const DType gradient : {DType::bf16, DType::f16, DType::f32}) {
      layouts.push_back({MasterFormat::split, moments, gradient, DType::bf16});
      for (const DType parameter : {DType::bf16, DType::f16, DType::f32}) {
        layouts.push_back({MasterFormat::fp32, moments, gradient, parameter});
      }
    }
  }
  return layouts;
}

/// One step of `count` parameters: the state before and, by the reference, after it.
struct Case {
  Case(UpdateRule rule_in, StateLayout layout_in, std::size_t count_in)
      : rule(rule_in),
        layout(layout_in),
        count(count_in),
        coefficients(some_coefficients(rule)),
        before(rule, layout, count),
        after(before) {
    std::mt19937 random(static_cast<std::uint32_t>(count));
    reference::fill(before, random, rule, layout);
    gradient = reference::random_gradient(random, layout.gradient, count);
    after = before;
    reference::step(rule, layout, views(before, after, 0, count), coefficients);
  }

  [[nodiscard]] ChunkViews views(const State& from, State& to, std::size_t begin,
                                 std::size_t size) const {
    const std::size_t g = size_of(layout.gradient);
    const auto part = std::span(gradient).subspan(begin * g, size * g);
    const bool split = layout.master == MasterFormat::split;
    return {static_cast<std::int64_t>(size), kFirstIndex + static_cast<std::int64_t>(begin),
            from.source(begin, size, part, split), to.target(begin, size, true)};
  }

  UpdateRule rule;
  StateLayout layout;
  std::size_t count;
  Coefficients coefficients;
  Bytes gradient;
  State before;
  State after;
};

/// How the step is run; the result must not show it.
struct Manner {
  std::size_t chunk;  // parameters a call
  std::size_t misalignment;
  bool in_place;
};

bool equals_reference(const Case& c, CpuTarget target, Workers& workers, Manner manner) {
  State before(c.rule, c.layout, c.count, manner.misalignment);
  const ChunkSource a = c.before.source(0, c.count, {}, true);
  const ChunkTarget b = before.all();
  std::ranges::copy(a.master, b.master.begin());
  std::ranges::copy(a.exp_avg, b.exp_avg.begin());
  std::ranges::copy(a.exp_avg_sq, b.exp_avg_sq.begin());
  std::ranges::copy(a.parameter, b.parameter.begin());
  State other(c.rule, c.layout, manner.in_place ? 0 : c.count, manner.misalignment);
  State& after = manner.in_place ? before : other;
  for (std::size_t begin = 0; begin < c.count; begin += manner.chunk) {
    const std::size_t size = std::min(manner.chunk, c.count - begin);
    optimizer_step(workers, c.rule, c.layout, c.views(before, after, begin, size), c.coefficients,
                   target);
  }
  return after == c.after;
}

/// Pools of 1, 2 and 3 threads.
std::vector<std::unique_ptr<Workers>> some_workers() {
  std::vector<std::unique_ptr<Workers>> pools;
  for (const int threads : {1, 2, 3}) pools.push_back(std::make_unique<Workers>(threads));
  return pools;
}

TEST(OptimizerStep, equals_the_scalar_reference_at_every_length_target_and_format) {
  const auto pools = some_workers();
  for (const UpdateRule rule : kRules) {
    for (const StateLayout layout : all_layouts()) {
      SCOPED_TRACE(describe(rule, layout));
      for (const std::size_t count : {1, 7, 15, 16, 17, 63, 64, 65, 1003}) {
        const Case c(rule, layout, count);
        for (const CpuTarget target : CpuTarget::all()) {
          for (const Manner manner :
               {Manner{count, 0, true}, Manner{count, 1, false}, Manner{count / 3 + 1, 1, true}}) {
            for (const auto& workers : pools) {
              ASSERT_TRUE(equals_reference(c, target, *workers, manner))
                  << target.name() << ", " << workers->threads() << " threads, " << count
                  << " parameters in chunks of " << manner.chunk
                  << (manner.in_place ? ", in place" : ", out of place");
            }
          }
        }
      }
    }
  }
}

// Long enough for every thread to have a part, and for stores past the caches. Of the pairs of
// threads and chunks a sanitizer's build runs a third: each target still takes every number of
// threads and every chunking, and three targets all pairs.
TEST(OptimizerStep, does_not_depend_on_threads_and_chunks) {
  constexpr std::size_t kCount = kSanitized ? 600'011 : 1'000'003;
  constexpr std::array kChunks = {kCount, kCount / 3 - 4, std::size_t{65'536}};
  const auto pools = some_workers();
  for (const StateLayout layout :
       {StateLayout{MasterFormat::fp32, DType::f32}, StateLayout{MasterFormat::split, DType::f32},
        StateLayout{MasterFormat::fp32, DType::bf16},
        StateLayout{MasterFormat::split, DType::bf16}}) {
    SCOPED_TRACE(describe(UpdateRule::adamw, layout));
    const Case c(UpdateRule::adamw, layout, kCount);
    std::size_t shift = 0;
    for (const CpuTarget target : CpuTarget::all()) {
      for (std::size_t pair = 0; pair < pools.size() * kChunks.size(); ++pair) {
        Workers& workers = *pools[pair / kChunks.size()];
        const std::size_t chunk = kChunks[pair % kChunks.size()];
        const bool diagonal = (pair / kChunks.size() + pair + shift) % kChunks.size() == 0;
        if (kSanitized && !diagonal) continue;
        ASSERT_TRUE(equals_reference(c, target, workers, {chunk, pair % 2, pair % 4 < 2}))
            << target.name() << ", " << workers.threads() << " threads, chunks of " << chunk;
      }
      ++shift;
    }
  }
}

TEST(OptimizerStep, split_keeps_the_master_of_fp32_over_a_thousand_steps) {
  constexpr std::size_t kCount = 4099;
  constexpr UpdateRule kRule = UpdateRule::adamw;
  const StateLayout whole{MasterFormat::fp32, DType::f32};
  const StateLayout halves{MasterFormat::split, DType::f32};
  Workers workers(2);
  std::mt19937 random(1);
  State fp32(kRule, whole, kCount);
  State split(kRule, halves, kCount);
  reference::fill(fp32, random, kRule, whole);
  const ChunkTarget w = fp32.all();
  const ChunkTarget h = split.all();
  std::ranges::copy(w.exp_avg, h.exp_avg.begin());
  std::ranges::copy(w.exp_avg_sq, h.exp_avg_sq.begin());
  for (std::size_t i = 0; i < kCount; ++i) {
    const SplitFloat parts = split_float(reference::get<float>(w.master, i));
    reference::put(h.master, i, parts.remainder);
    reference::put(h.parameter, i, parts.parameter);
  }
  for (int step = 0; step < 1000; ++step) {
    const Bytes gradient = reference::random_gradient(random, DType::bf16, kCount);
    const Coefficients c = some_coefficients(kRule);
    optimizer_step(workers, kRule, whole, {kCount, 0, fp32.source(0, kCount, gradient, false), w},
                   c);
    optimizer_step(workers, kRule, halves, {kCount, 0, split.source(0, kCount, gradient, true), h},
                   c);
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    const SplitFloat parts{reference::get<Bf16>(h.parameter, i),
                           reference::get<std::uint16_t>(h.master, i)};
    ASSERT_EQ(std::bit_cast<std::uint32_t>(join_float(parts)),
              reference::get<std::uint32_t>(w.master, i))
        << "parameter " << i;
  }
  EXPECT_TRUE(std::ranges::equal(w.parameter, h.parameter));
  EXPECT_TRUE(std::ranges::equal(w.exp_avg_sq, h.exp_avg_sq));
}

/// Which of `count` bf16 moments one step rounds up, 1 or 0 each: from zeros with g = 1 both
/// moments come to a third of the way from 1 to the next bf16 number.
struct Raised {
  Raised(std::size_t count, std::uint64_t step) {
    const StateLayout layout{MasterFormat::fp32, DType::bf16};
    State state(UpdateRule::adamw, layout, count);
    Bytes gradient(count * 2);
    for (std::size_t i = 0; i < count; ++i) reference::put(gradient, i, to_bf16(1.0F));
    Coefficients c = some_coefficients(UpdateRule::adamw);
    c.gradient_scale = 1;
    c.one_minus_beta1 = c.one_minus_beta2 = 1.0F + 0x1p-7F / 3;
    c.step = step;
    Workers workers(2);
    optimizer_step(
        workers, UpdateRule::adamw, layout,
        {static_cast<std::int64_t>(count), 0, state.source(0, count, gradient, false), state.all()},
        c);
    exp_avg = raised(state.all().exp_avg, count);
    exp_avg_sq = raised(state.all().exp_avg_sq, count);
  }

  static std::vector<double> raised(std::span<const std::byte> moments, std::size_t count) {
    std::vector<double> result(count);
    for (std::size_t i = 0; i < count; ++i) {
      const float moment = reference::get_float(moments, DType::bf16, i);
      EXPECT_TRUE(moment == 1.0F || moment == 1.0F + 0x1p-7F) << moment;
      result[i] = moment > 1.0F ? 1 : 0;
    }
    return result;
  }

  std::vector<double> exp_avg, exp_avg_sq;
};

// Over n parameters a mean is off by at most 5 standard deviations: a coin of p = 1/3 has
// sqrt(2/9 / n), the product of two independent ones (about their means) 2/9 / sqrt(n).
constexpr std::size_t kCoins = 1 << 18;

TEST(OptimizerStep, rounds_bf16_moments_to_the_right_mean) {
  const Raised coins(kCoins, 77);
  const double bound = 5 * std::sqrt(2.0 / 9 / kCoins) + 0x1p-16;
  for (const std::vector<double>& raised : {coins.exp_avg, coins.exp_avg_sq}) {
    EXPECT_NEAR(std::reduce(raised.begin(), raised.end()) / kCoins, 1.0 / 3, bound);
  }
}

TEST(OptimizerStep, rounds_moments_neighbours_and_steps_independently) {
  const Raised coins(kCoins, 77);
  const Raised next(kCoins, 78);
  const auto covariance = [](const std::vector<double>& a, const std::vector<double>& b,
                             std::size_t distance) {
    double sum = 0;
    for (std::size_t i = 0; i < kCoins; ++i) {
      sum += (a[i] - 1.0 / 3) * (b[(i + distance) % kCoins] - 1.0 / 3);
    }
    return sum / kCoins;
  };
  const double bound = 5 * (2.0 / 9) / std::sqrt(double{kCoins});
  EXPECT_NEAR(covariance(coins.exp_avg, coins.exp_avg_sq, 0), 0, bound);
  EXPECT_NEAR(covariance(coins.exp_avg, next.exp_avg, 0), 0, bound);
  EXPECT_NEAR(covariance(coins.exp_avg_sq, next.exp_avg_sq, 0), 0, bound);
  for (const std::size_t distance : {1, 4, 8, 16, 32, 64}) {  // lanes, words, tiles
    EXPECT_NEAR(covariance(coins.exp_avg, coins.exp_avg, distance), 0, bound) << distance;
    EXPECT_NEAR(covariance(coins.exp_avg_sq, coins.exp_avg_sq, distance), 0, bound) << distance;
  }
}

TEST(OptimizerStep, keeps_a_finite_bf16_moment_finite) {
  // FLT_MAX rounds down, whatever the random bits; plain addition would carry into infinity.
  constexpr std::size_t kCount = 4096;
  const StateLayout layout{MasterFormat::fp32, DType::bf16, DType::f32, DType::bf16};
  State state(UpdateRule::lion, layout, kCount);
  Bytes gradient(kCount * 4);
  for (std::size_t i = 0; i < kCount; ++i) {
    reference::put(gradient, i, std::numeric_limits<float>::max());
  }
  Coefficients c = some_coefficients(UpdateRule::lion);
  c.gradient_scale = 1;
  c.one_minus_beta2 = 1;
  Workers workers(1);
  for (const CpuTarget target : CpuTarget::all()) {
    optimizer_step(workers, UpdateRule::lion, layout,
                   {kCount, 0, state.source(0, kCount, gradient, false), state.all()}, c, target);
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(reference::get<Bf16>(state.all().exp_avg, i).bits, 0x7f7f) << target.name();
    }
  }
}

TEST(OptimizerStep, refuses_spans_that_do_not_fit) {
  Workers workers(1);
  const StateLayout layout;
  State state(UpdateRule::adamw, layout, 8);
  const Bytes gradient(16);
  const Bytes short_gradient(14);
  const Coefficients c;
  EXPECT_THROW(optimizer_step(workers, UpdateRule::adamw, layout,
                              {8, 0, state.source(0, 8, short_gradient, false), state.all()}, c),
               Error);
  EXPECT_THROW(optimizer_step(workers, UpdateRule::adamw, layout,
                              {8, 0, state.source(0, 7, gradient, false), state.all()}, c),
               Error);
  StateLayout half_split{MasterFormat::split, DType::f32, DType::bf16, DType::f16};
  EXPECT_THROW(optimizer_step(workers, UpdateRule::adamw, half_split,
                              {8, 0, state.source(0, 8, gradient, true), state.all()}, c),
               Error);
}

}  // namespace
}  // namespace terrace::kernels
