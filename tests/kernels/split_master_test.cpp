#include "terrace/kernels/split_master.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "terrace/kernels/optimizer_step.h"

namespace terrace::kernels {
namespace {

/// Sends FP32 patterns through both implementations of the split: `split_float`, and a step of the
/// vector kernel that changes nothing (no gradient, no decay).
class RoundTrip {
 public:
  explicit RoundTrip(std::size_t count)
      : patterns_(count), parameter_(count), remainder_(count), moments_(count), gradient_(count) {
    no_change_.eps = 1;
  }

  std::vector<std::uint32_t>& patterns() { return patterns_; }

  /// False when a pattern that is no NaN is not the same afterwards, or a NaN is none.
  [[nodiscard]] bool holds(CpuTarget target) {
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      const SplitFloat split = split_float(std::bit_cast<float>(patterns_[i]));
      parameter_[i] = split.parameter;
      remainder_[i] = split.remainder;
      if (!is_kept(patterns_[i], join_float(split))) return false;
    }
    const auto parameter = std::as_writable_bytes(std::span(parameter_));
    const auto remainder = std::as_writable_bytes(std::span(remainder_));
    const auto moments = std::as_writable_bytes(std::span(moments_));
    ChunkViews chunk;
    chunk.count = static_cast<std::int64_t>(patterns_.size());
    chunk.source = {remainder, {}, moments, parameter, std::as_bytes(std::span(gradient_))};
    chunk.target = {remainder, {}, moments, parameter};
    optimizer_step(workers_, UpdateRule::adagrad, {MasterFormat::split}, chunk, no_change_, target);
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

  Workers workers_{2};
  Coefficients no_change_;
  std::vector<std::uint32_t> patterns_;
  std::vector<Bf16> parameter_;
  std::vector<std::uint16_t> remainder_;
  std::vector<float> moments_;
  std::vector<Bf16> gradient_;
};

TEST(SplitMaster, sampled_patterns_round_trip_and_nan_stays_nan) {
  // Every upper half with the lower halves where the rule turns, and some in between.
  constexpr std::uint32_t kLower[] = {0, 1, 0x1234, 0x7fff, 0x8000, 0x8001, 0xabcd, 0xffff};
  RoundTrip trip(std::size_t{1 << 16} * std::size(kLower));
  std::size_t i = 0;
  for (std::uint32_t upper = 0; upper < (1U << 16); ++upper) {
    for (const std::uint32_t lower : kLower) trip.patterns()[i++] = (upper << 16) | lower;
  }
  for (const CpuTarget target : CpuTarget::all()) {
    EXPECT_TRUE(trip.holds(target)) << target.name();
  }
}

// By hand, a minute: --gtest_also_run_disabled_tests --gtest_filter=SplitMaster.*
TEST(SplitMaster, DISABLED_all_patterns_round_trip_and_nan_stays_nan) {
  constexpr std::uint32_t kBatch = 1U << 20;
  RoundTrip trip(kBatch);
  for (std::uint64_t first = 0; first < (std::uint64_t{1} << 32); first += kBatch) {
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      trip.patterns()[i] = static_cast<std::uint32_t>(first) + i;
    }
    ASSERT_TRUE(trip.holds(CpuTarget())) << "between " << first << " and " << first + kBatch;
  }
}

TEST(SplitMaster, arrays_split_join_and_narrow_as_single_values_do) {
  Workers workers(3);
  constexpr std::size_t kCount = 200'003;
  std::vector<float> master(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    master[i] = std::bit_cast<float>(static_cast<std::uint32_t>(i * 21'471));
  }
  std::vector<Bf16> parameter(kCount);
  std::vector<std::uint16_t> remainder(kCount);
  split_master(workers, master, parameter, remainder);
  std::vector<float> joined(kCount);
  join_master(workers, parameter, remainder, joined);
  std::vector<Bf16> narrow(kCount);
  narrow_master(workers, master, DType::bf16, std::as_writable_bytes(std::span(narrow)));
  std::vector<F16> half(kCount);
  narrow_master(workers, master, DType::f16, std::as_writable_bytes(std::span(half)));
  EXPECT_EQ(narrow, parameter);
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(parameter[i], to_parameter_bf16(master[i]));
    ASSERT_EQ(half[i], to_f16(master[i]));
    if (!std::isnan(master[i])) {
      ASSERT_EQ(joined[i], master[i]);
    }
  }
}

}  // namespace
}  // namespace terrace::kernels
