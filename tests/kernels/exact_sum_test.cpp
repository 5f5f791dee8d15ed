#include "terrace/kernels/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace terrace::kernels {
namespace {

/// Sums of squares from 2^-298 to 2^256.
std::vector<double> spread_values(std::size_t count) {
  std::mt19937_64 random(5);
  std::vector<double> values(count);
  for (double& value : values) {
    const auto exponent = static_cast<int>(random() % 500) - 245;
    value = std::ldexp(static_cast<double>(random() >> 11), exponent - 53);
  }
  return values;
}

TEST(ExactSum, single_values_come_back) {
  for (const double value : {0.0, 0x1p-298, 0x1.8p-297, 1.0, 1.0 / 3, 1e38 * 1e38,
                             0x1.fffffep127 * 0x1.fffffep127 * 128, 0x1.fffffffffffffp299}) {
    ExactSum sum;
    sum.add(value);
    EXPECT_EQ(sum.value(), value);
  }
}

TEST(ExactSum, small_values_are_not_lost_beside_large_ones) {
  // In double 2^60 + 1 is 2^60; 2^10 ones added one by one would be lost.
  ExactSum sum;
  sum.add(0x1p60);
  for (int i = 0; i < 1024; ++i) sum.add(1);
  EXPECT_EQ(sum.value(), 0x1p60 + 1024);
}

TEST(ExactSum, does_not_depend_on_order_or_grouping) {
  std::vector<double> values = spread_values(5000);
  ExactSum forward;
  for (const double value : values) forward.add(value);
  std::mt19937 random(9);
  for (int round = 0; round < 5; ++round) {
    std::ranges::shuffle(values, random);
    std::vector<ExactSum> parts(7);
    for (const double value : values) parts[random() % parts.size()].add(value);
    ExactSum total;
    for (const ExactSum& part : parts) total.add(part);
    EXPECT_EQ(total.digits(), forward.digits());
    EXPECT_EQ(total.value(), forward.value());
  }
}

TEST(ExactSum, digits_of_ranks_may_be_added_as_doubles) {
  const std::vector<double> values = spread_values(999);
  ExactSum whole;
  std::vector<ExactSum> ranks(16);
  for (std::size_t i = 0; i < values.size(); ++i) {
    whole.add(values[i]);
    ranks[i % ranks.size()].add(values[i]);
  }
  std::array<double, ExactSum::kLimbs> reduced{};
  for (const ExactSum& rank : ranks) {
    const auto digits = rank.digits();
    for (std::size_t i = 0; i < reduced.size(); ++i) reduced[i] += digits[i];
  }
  EXPECT_EQ(ExactSum::from_digits(reduced).digits(), whole.digits());
}

}  // namespace
}  // namespace terrace::kernels
