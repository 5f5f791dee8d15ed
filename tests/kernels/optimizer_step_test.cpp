#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <numeric>
#include <string>

#include "core/sanitized.h"
#include "kernels/optimizer_conformance.h"
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
    const device::Span<const std::byte> all{std::span<const std::byte>(gradient)};
    reference::step(rule, layout,
                    {static_cast<std::int64_t>(count), kFirstIndex,
                     before.source(before.base(), 0, count, all, is_split()), after.all()},
                    coefficients);
  }

  [[nodiscard]] bool is_split() const { return layout.master == MasterFormat::split; }

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

/// Runs steps through one piece of device memory.
class Stepper {
 public:
  explicit Stepper(const OptimizerMachine& machine) : machine_(machine), slab_(machine.memory(0)) {}

  [[nodiscard]] bool equals_reference(const Case& c, OptimizerOps& ops, Manner manner) {
    State state = c.before.moved(c.rule, c.layout, manner.misalignment);
    // Source, target and gradient, each at a multiple of a cache line.
    const std::size_t bytes = (state.bytes().size() + 63) / 64 * 64;
    if (slab_.bytes() < 3 * bytes) slab_ = machine_.memory(3 * bytes);
    const device::Pointer source = slab_.pointer();
    const device::Pointer target = manner.in_place ? source : source + bytes;
    const device::Pointer gradient = source + 2 * bytes;
    device::Stream& stream = machine_.stream();
    stream.clear(target, bytes);
    stream.copy_to_device(source, state.bytes());
    stream.copy_to_device(gradient, c.gradient);
    const std::size_t g = size_of(c.layout.gradient);
    for (std::size_t begin = 0; begin < c.count; begin += manner.chunk) {
      const std::size_t size = std::min(manner.chunk, c.count - begin);
      const device::Span<const std::byte> part(gradient + begin * g, size * g);
      const ChunkViews chunk{
          static_cast<std::int64_t>(size), kFirstIndex + static_cast<std::int64_t>(begin),
          state.source(source, begin, size, part, c.is_split()), state.target(target, begin, size)};
      ops.run(stream, StepArgs{c.rule, c.layout, chunk, c.coefficients});
    }
    stream.copy_to_host(state.bytes(), target);
    stream.synchronize();
    return state == c.after;
  }

 private:
  const OptimizerMachine& machine_;
  DeviceBytes slab_;
};

/// One step of the whole of `state`, which is in host memory.
void step_all(const OptimizerMachine& machine, OptimizerOps& ops, UpdateRule rule,
              StateLayout layout, State& state, const Bytes& gradient, const Coefficients& c) {
  const std::size_t count = gradient.size() / size_of(layout.gradient);
  const DeviceBytes there = machine.memory(state.bytes());
  const DeviceBytes gradients = machine.memory(gradient);
  const bool split = layout.master == MasterFormat::split;
  const ChunkViews chunk{static_cast<std::int64_t>(count), 0,
                         state.source(there.pointer(), 0, count, gradients.span(), split),
                         state.target(there.pointer(), 0, count)};
  machine.run(ops, StepArgs{rule, layout, chunk, c});
  there.read(state.bytes());
}

TEST_P(OptimizerConformance, step_equals_the_scalar_reference_at_every_length_table_and_format) {
  Stepper stepper(machine_);
  std::vector<std::shared_ptr<OptimizerOps>> tables;
  for (const OptimizerTable& table : GetParam().tables) tables.push_back(table.make());
  for (const UpdateRule rule : kRules) {
    for (const StateLayout layout : all_layouts()) {
      SCOPED_TRACE(describe(rule, layout));
      for (const std::size_t count : {1, 7, 15, 16, 17, 63, 64, 65, 1003}) {
        const Case c(rule, layout, count);
        for (const Manner manner :
             {Manner{count, 0, true}, Manner{count, 1, false}, Manner{count / 3 + 1, 1, true}}) {
          for (std::size_t i = 0; i < tables.size(); ++i) {
            ASSERT_TRUE(stepper.equals_reference(c, *tables[i], manner))
                << GetParam().tables[i].name << ", " << count << " parameters in chunks of "
                << manner.chunk << (manner.in_place ? ", in place" : ", out of place");
          }
        }
      }
    }
  }
}

// Long enough for every thread to have a part, and for stores past the caches. Of the pairs of
// tables and chunks a sanitizer's build runs a third: each table still takes one chunking.
TEST_P(OptimizerConformance, step_does_not_depend_on_tables_and_chunks) {
  constexpr std::size_t kCount = kSanitized ? 600'011 : 1'000'003;
  constexpr std::array kChunks = {kCount, kCount / 3 - 4, std::size_t{65'536}};
  for (const StateLayout layout :
       {StateLayout{MasterFormat::fp32, DType::f32}, StateLayout{MasterFormat::split, DType::f32},
        StateLayout{MasterFormat::fp32, DType::bf16},
        StateLayout{MasterFormat::split, DType::bf16}}) {
    SCOPED_TRACE(describe(UpdateRule::adamw, layout));
    const Case c(UpdateRule::adamw, layout, kCount);
    std::size_t pair = 0;
    Stepper stepper(machine_);
    on_every_table([&](OptimizerOps& ops) {
      for (const std::size_t chunk : kChunks) {
        if (kSanitized && pair % kChunks.size() != pair / kChunks.size() % kChunks.size()) {
          ++pair;
          continue;
        }
        ASSERT_TRUE(stepper.equals_reference(c, ops, {chunk, pair % 2, pair % 4 < 2}))
            << "chunks of " << chunk;
        ++pair;
      }
    });
  }
}

TEST_P(OptimizerConformance, step_split_keeps_the_master_of_fp32_over_a_thousand_steps) {
  constexpr std::size_t kCount = 4099;
  constexpr UpdateRule kRule = UpdateRule::adamw;
  const StateLayout whole{MasterFormat::fp32, DType::f32};
  const StateLayout halves{MasterFormat::split, DType::f32};
  std::mt19937 random(1);
  State fp32(kRule, whole, kCount);
  State split(kRule, halves, kCount);
  reference::fill(fp32, random, kRule, whole);
  const ChunkTarget w = fp32.all();
  const ChunkTarget h = split.all();
  std::ranges::copy(w.exp_avg.on_host(), h.exp_avg.on_host().begin());
  std::ranges::copy(w.exp_avg_sq.on_host(), h.exp_avg_sq.on_host().begin());
  for (std::size_t i = 0; i < kCount; ++i) {
    const SplitFloat parts = split_float(reference::get<float>(w.master.on_host(), i));
    reference::put(h.master.on_host(), i, parts.remainder);
    reference::put(h.parameter.on_host(), i, parts.parameter);
  }
  for (int number = 0; number < 1000; ++number) {
    const Bytes gradient = reference::random_gradient(random, DType::bf16, kCount);
    const Coefficients c = some_coefficients(kRule);
    step_all(machine_, *usual_, kRule, whole, fp32, gradient, c);
    step_all(machine_, *usual_, kRule, halves, split, gradient, c);
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    const SplitFloat parts{reference::get<Bf16>(h.parameter.on_host(), i),
                           reference::get<std::uint16_t>(h.master.on_host(), i)};
    ASSERT_EQ(std::bit_cast<std::uint32_t>(join_float(parts)),
              reference::get<std::uint32_t>(w.master.on_host(), i))
        << "parameter " << i;
  }
  EXPECT_TRUE(std::ranges::equal(w.parameter.on_host(), h.parameter.on_host()));
  EXPECT_TRUE(std::ranges::equal(w.exp_avg_sq.on_host(), h.exp_avg_sq.on_host()));
}

/// Which of `count` bf16 moments one step rounds up, 1 or 0 each: from zeros with g = 1 both
/// moments come to a third of the way from 1 to the next bf16 number.
struct Raised {
  Raised(const OptimizerMachine& machine, OptimizerOps& ops, std::size_t count,
         std::uint64_t number) {
    const StateLayout layout{MasterFormat::fp32, DType::bf16};
    State state(UpdateRule::adamw, layout, count);
    Bytes gradient(count * 2);
    for (std::size_t i = 0; i < count; ++i) reference::put(gradient, i, to_bf16(1.0F));
    Coefficients c = some_coefficients(UpdateRule::adamw);
    c.gradient_scale = 1;
    c.one_minus_beta1 = c.one_minus_beta2 = 1.0F + 0x1p-7F / 3;
    c.step = number;
    step_all(machine, ops, UpdateRule::adamw, layout, state, gradient, c);
    exp_avg = raised(state.all().exp_avg.on_host());
    exp_avg_sq = raised(state.all().exp_avg_sq.on_host());
  }

  static std::vector<double> raised(std::span<const std::byte> moments) {
    std::vector<double> result(moments.size() / sizeof(Bf16));
    for (std::size_t i = 0; i < result.size(); ++i) {
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

TEST_P(OptimizerConformance, step_rounds_bf16_moments_to_the_right_mean) {
  const Raised coins(machine_, *usual_, kCoins, 77);
  const double bound = 5 * std::sqrt(2.0 / 9 / kCoins) + 0x1p-16;
  for (const std::vector<double>& coin : {coins.exp_avg, coins.exp_avg_sq}) {
    EXPECT_NEAR(std::reduce(coin.begin(), coin.end()) / kCoins, 1.0 / 3, bound);
  }
}

TEST_P(OptimizerConformance, step_rounds_moments_neighbours_and_steps_independently) {
  const Raised coins(machine_, *usual_, kCoins, 77);
  const Raised next(machine_, *usual_, kCoins, 78);
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

TEST_P(OptimizerConformance, step_keeps_a_finite_bf16_moment_finite) {
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
  on_every_table([&](OptimizerOps& ops) {
    step_all(machine_, ops, UpdateRule::lion, layout, state, gradient, c);
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(reference::get<Bf16>(state.all().exp_avg.on_host(), i).bits, 0x7f7f);
    }
  });
}

TEST_P(OptimizerConformance, step_refuses_spans_that_do_not_fit) {
  const StateLayout layout;
  const StateLayout half_split{MasterFormat::split, DType::f32, DType::bf16, DType::f16};
  State state(UpdateRule::adamw, layout, 8);
  const DeviceBytes there = machine_.memory(state.bytes());
  const DeviceBytes gradient = machine_.memory(16);
  const auto refused = [&](StateLayout of, std::size_t sources, std::size_t gradient_bytes) {
    const ChunkSource source =
        state.source(there.pointer(), 0, sources, gradient.span().subspan(0, gradient_bytes), true);
    const ChunkViews chunk{8, 0, source, state.target(there.pointer(), 0, 8)};
    EXPECT_THROW(machine_.run(*usual_, StepArgs{UpdateRule::adamw, of, chunk, {}}), Error);
  };
  refused(layout, 8, 14);
  refused(layout, 7, 16);
  refused(half_split, 8, 16);
}

TEST_P(OptimizerConformance, step_refuses_operands_that_are_missing_or_of_no_type) {
  const DeviceBytes there = machine_.memory(64);
  const View view{there.pointer(), DType::f32};
  EXPECT_THROW(
      machine_.run(*usual_, SumSquaresArgs{1, {there.pointer(), DType::i32}, there.pointer()}),
      Error);
  EXPECT_THROW(machine_.run(*usual_, SumSquaresArgs{1, view, {}}), Error);
  EXPECT_THROW(machine_.run(*usual_, SplitMasterArgs{1, there.pointer(), {}, there.pointer()}),
               Error);
  EXPECT_THROW(
      machine_.run(*usual_, JoinMasterArgs{-1, there.pointer(), there.pointer(), there.pointer()}),
      Error);
  EXPECT_THROW(
      machine_.run(*usual_, NarrowMasterArgs{1, there.pointer(), {there.pointer(), DType::i32}}),
      Error);
  EXPECT_THROW(machine_.run(*usual_, ConvertArgs{1, view, {there.pointer(), DType::f16}}), Error);
  EXPECT_THROW(machine_.run(*usual_, FirstTouchArgs{3, {there.span()}}), Error);
}

}  // namespace
}  // namespace terrace::kernels
