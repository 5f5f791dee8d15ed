#include "terrace/kernels/split_master.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/optimizer_conformance.h"

namespace terrace::kernels {
namespace {

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <class T>
std::vector<T> values_in(const DeviceBytes& memory) {
  std::vector<T> values(memory.bytes() / sizeof(T));
  memory.read(std::as_writable_bytes(std::span(values)));
  return values;
}

/// Sends FP32 patterns through both implementations of the split: `split_float`, and a step of a
/// table that changes nothing (no gradient, no decay).
class RoundTrip {
 public:
  RoundTrip(const OptimizerMachine& machine, std::size_t count)
      : machine_(machine),
        patterns_(count),
        parameter_(count),
        remainder_(count),
        parameter_there_(machine.memory(count * sizeof(Bf16))),
        remainder_there_(machine.memory(count * sizeof(std::uint16_t))),
        moments_(machine.memory(bytes_of(std::vector<float>(count)))),
        gradient_(machine.memory(bytes_of(std::vector<Bf16>(count)))) {
    no_change_.eps = 1;
  }

  std::vector<std::uint32_t>& patterns() { return patterns_; }

  /// False when a pattern that is no NaN is not the same afterwards, or a NaN is none.
  [[nodiscard]] bool holds(OptimizerOps& ops) {
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      const SplitFloat split = split_float(std::bit_cast<float>(patterns_[i]));
      parameter_[i] = split.parameter;
      remainder_[i] = split.remainder;
      if (!is_kept(patterns_[i], join_float(split))) return false;
    }
    parameter_there_.write(bytes_of(parameter_));
    remainder_there_.write(bytes_of(remainder_));
    ChunkViews chunk;
    chunk.count = static_cast<std::int64_t>(patterns_.size());
    const auto parameter = parameter_there_.span(), remainder = remainder_there_.span();
    chunk.source = {remainder, {}, moments_.span(), parameter, gradient_.span()};
    chunk.target = {remainder, {}, moments_.span(), parameter};
    machine_.run(ops, StepArgs{UpdateRule::adagrad, {MasterFormat::split}, chunk, no_change_});
    parameter_ = values_in<Bf16>(parameter_there_);
    remainder_ = values_in<std::uint16_t>(remainder_there_);
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (!is_kept(patterns_[i], join_float({parameter_[i], remainder_[i]}))) return false;
    }
    return true;
  }

 private:
  static bool is_kept(std::uint32_t pattern, float joined) {
    if (std::isnan(std::bit_cast<float>(pattern))) return std::isnan(joined);
    return std::bit_cast<std::uint32_t>(joined) == pattern;
  }

  const OptimizerMachine& machine_;
  Coefficients no_change_;
  std::vector<std::uint32_t> patterns_;
  std::vector<Bf16> parameter_;
  std::vector<std::uint16_t> remainder_;
  DeviceBytes parameter_there_, remainder_there_, moments_, gradient_;
};

TEST_P(OptimizerConformance, split_sampled_patterns_round_trip_and_nan_stays_nan) {
  // Every upper half with the lower halves where the rule turns, and some in between.
  constexpr std::uint32_t kLower[] = {0, 1, 0x1234, 0x7fff, 0x8000, 0x8001, 0xabcd, 0xffff};
  RoundTrip trip(machine_, std::size_t{1 << 16} * std::size(kLower));
  std::size_t i = 0;
  for (std::uint32_t upper = 0; upper < (1U << 16); ++upper) {
    for (const std::uint32_t lower : kLower) trip.patterns()[i++] = (upper << 16) | lower;
  }
  on_every_table([&](OptimizerOps& ops) { EXPECT_TRUE(trip.holds(ops)); });
}

// By hand, a minute: --gtest_also_run_disabled_tests --gtest_filter=*all_patterns*
TEST_P(OptimizerConformance, DISABLED_split_all_patterns_round_trip_and_nan_stays_nan) {
  constexpr std::uint32_t kBatch = 1U << 20;
  RoundTrip trip(machine_, kBatch);
  for (std::uint64_t first = 0; first < (std::uint64_t{1} << 32); first += kBatch) {
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      trip.patterns()[i] = static_cast<std::uint32_t>(first) + i;
    }
    ASSERT_TRUE(trip.holds(*usual_)) << "between " << first << " and " << first + kBatch;
  }
}

TEST_P(OptimizerConformance, arrays_split_join_and_narrow_as_single_values_do) {
  constexpr std::size_t kCount = 200'003;
  std::vector<float> master(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    master[i] = std::bit_cast<float>(static_cast<std::uint32_t>(i * 21'471));
  }
  const DeviceBytes masters = machine_.memory(bytes_of(master));
  const DeviceBytes parameters = machine_.memory(kCount * 2);
  const DeviceBytes remainders = machine_.memory(kCount * 2);
  const DeviceBytes joined_there = machine_.memory(kCount * 4);
  const auto narrowed = [&](DType dtype) {
    DeviceBytes narrow = machine_.memory(kCount * size_of(dtype));
    machine_.run(*usual_, NarrowMasterArgs{kCount, masters.pointer(), {narrow.pointer(), dtype}});
    return narrow;
  };
  machine_.run(*usual_, SplitMasterArgs{kCount, masters.pointer(), parameters.pointer(),
                                        remainders.pointer()});
  machine_.run(*usual_, JoinMasterArgs{kCount, parameters.pointer(), remainders.pointer(),
                                       joined_there.pointer()});
  const auto parameter = values_in<Bf16>(parameters);
  const auto joined = values_in<float>(joined_there);
  const auto half = values_in<F16>(narrowed(DType::f16));
  EXPECT_EQ(values_in<Bf16>(narrowed(DType::bf16)), parameter);
  EXPECT_EQ(narrowed(DType::f32).bits(), masters.bits());
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(parameter[i], to_parameter_bf16(master[i]));
    ASSERT_EQ(half[i], to_f16(master[i]));
    if (!std::isnan(master[i])) {
      ASSERT_EQ(joined[i], master[i]);
    }
  }
}

TEST_P(OptimizerConformance, moments_narrow_to_nearest_even_and_widen_back) {
  std::vector<float> moments;
  for (std::uint32_t upper = 0; upper < (1U << 16); ++upper) {
    for (const std::uint32_t lower : {0x0U, 0x7fffU, 0x8000U, 0x8001U}) {
      moments.push_back(std::bit_cast<float>((upper << 16) | lower));
    }
  }
  const auto count = static_cast<std::int64_t>(moments.size());
  const DeviceBytes wide = machine_.memory(bytes_of(moments));
  const DeviceBytes narrow = machine_.memory(moments.size() * sizeof(Bf16));
  machine_.run(*usual_,
               ConvertArgs{count, {wide.pointer(), DType::f32}, {narrow.pointer(), DType::bf16}});
  machine_.run(*usual_,
               ConvertArgs{count, {narrow.pointer(), DType::bf16}, {wide.pointer(), DType::f32}});
  const auto got = values_in<Bf16>(narrow);
  const auto back = values_in<float>(wide);
  for (std::size_t i = 0; i < moments.size(); ++i) {
    ASSERT_EQ(got[i].bits, to_bf16(moments[i]).bits);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::uint32_t{got[i].bits} << 16);
  }
}

}  // namespace
}  // namespace terrace::kernels
