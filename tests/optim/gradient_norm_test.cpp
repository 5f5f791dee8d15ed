#include "terrace/optim/gradient_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "terrace/device/inline_stream.h"
#include "terrace/kernels/cpu.h"

namespace terrace::optim {
namespace {

std::vector<float> random_values(std::size_t count) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values)
    value = std::ldexp(normal(random), static_cast<int>(random() % 40) - 20);
  return values;
}

kernels::SquareSums sums_of(Workers& workers, std::span<const std::byte> values, DType dtype) {
  kernels::SquareSums sums;
  kernels::make_cpu_optimizer_ops(workers)->run(
      *device::make_inline_stream(),
      kernels::SumSquaresArgs{static_cast<std::int64_t>(values.size() / size_of(dtype)),
                              {device::Span(values).data(), dtype},
                              device::Pointer(&sums)});
  return sums;
}

double norm_of(const std::vector<float>& values) {
  Workers workers(1);
  GradientNorm norm;
  norm.add(sums_of(workers, std::as_bytes(std::span(values)), DType::f32));
  return norm.norm();
}

TEST(GradientNorm, equals_the_root_of_the_sum_of_squares) {
  const std::vector<float> values = random_values(100'001);
  long double sum = 0;
  for (const float value : values) sum += static_cast<long double>(value) * value;
  // Inside a block 31 roundings at most to a partial sum's chain and the tree, then the exact sum,
  // its rounding and the root: far below 64 units of 2^-53.
  const double expected = std::sqrt(static_cast<double>(sum));
  EXPECT_NEAR(norm_of(values), expected, expected * 64 * 0x1p-53);
}

TEST(GradientNorm, does_not_depend_on_threads_cuts_order_or_ranks) {
  const std::vector<float> values = random_values(300'000);
  const auto bytes = std::as_bytes(std::span(values));
  const double expected = norm_of(values);
  for (const int threads : {1, 2, 3}) {
    Workers workers(threads);
    std::vector<std::size_t> cuts;  // in blocks of 512 bytes
    std::mt19937 random(static_cast<std::uint32_t>(threads));
    for (std::size_t at = 0; at < bytes.size(); at += 512 * (1 + random() % 600))
      cuts.push_back(at);
    std::vector<std::size_t> order(cuts.size());
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::shuffle(order, random);
    std::vector<GradientNorm> ranks(3);
    for (const std::size_t piece : order) {
      const std::size_t end = piece + 1 < cuts.size() ? cuts[piece + 1] : bytes.size();
      ranks[piece % 3].add(
          sums_of(workers, bytes.subspan(cuts[piece], end - cuts[piece]), DType::f32));
    }
    GradientNorm::Wire reduced{};
    for (const GradientNorm& rank : ranks) {
      const auto wire = rank.wire();
      for (std::size_t i = 0; i < wire.size(); ++i) reduced[i] += wire[i];
    }
    EXPECT_EQ(GradientNorm::from_wire(reduced).norm(), expected) << threads << " threads";
    ranks[0].add(ranks[1]);
    ranks[0].add(ranks[2]);
    EXPECT_EQ(ranks[0].norm(), expected);
  }
}

TEST(GradientNorm, does_not_overflow_where_fp32_would) {
  EXPECT_EQ(norm_of(std::vector<float>(128, 1e19F)),
            std::sqrt(128 * (double{1e19F} * double{1e19F})));
  // 2^20 values of FLT_MAX: 2^10 * FLT_MAX.
  EXPECT_EQ(norm_of(std::vector<float>(1 << 20, std::numeric_limits<float>::max())),
            1024.0 * std::numeric_limits<float>::max());
}

TEST(GradientNorm, counts_and_places_values_that_are_not_finite) {
  Workers workers(3);
  std::vector<Bf16> values(50'000, to_bf16(2));
  values[40'001] = Bf16{0x7f80};  // infinity
  values[31'234] = Bf16{0xffc1};  // NaN
  values[31'235] = Bf16{0x7f7f};  // the largest number
  GradientNorm norm;
  norm.add(sums_of(workers, std::as_bytes(std::span(values).first(12'800)), DType::bf16));
  EXPECT_EQ(norm.nonfinite(), 0);
  EXPECT_EQ(norm.norm(), std::sqrt(4.0 * 12'800));
  const kernels::SquareSums found =
      sums_of(workers, std::as_bytes(std::span(values).subspan(12'800)), DType::bf16);
  norm.add(found);
  EXPECT_EQ(found.nonfinite, 2);
  EXPECT_EQ(found.first, 31'234 - 12'800);
  EXPECT_EQ(norm.nonfinite(), 2);
  EXPECT_TRUE(std::isnan(norm.norm()));
  EXPECT_EQ(GradientNorm::from_wire(norm.wire()).nonfinite(), 2);
  const std::vector<F16> halves = {F16{0x7bff}, F16{0xfc00}, F16{0x7c01}};
  EXPECT_EQ(sums_of(workers, std::as_bytes(std::span(halves)), DType::f16).nonfinite, 2);
}

TEST(GradientNorm, clip_factor_is_pytorchs) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_factor(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(clip_factor(1.0, 1.0), 1.0 / (1.0 + 1e-6));
  EXPECT_EQ(clip_factor(100, 0), 1.0);
}

}  // namespace
}  // namespace terrace::optim
