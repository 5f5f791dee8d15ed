#include "terrace/core/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <set>

namespace terrace {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The known-answer vectors of the authors' Random123 for philox4x32-10: zeros, ones, and the digits
// of pi.
TEST(Philox, gives_the_published_vectors) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, is_a_function_of_seed_stream_and_index) {
  const RandomStream stream(42, 7);
  EXPECT_EQ(stream.bits(5), RandomStream(42, 7).bits(5));
  std::set<std::uint64_t> seen;
  for (const std::uint64_t seed : {0ULL, 1ULL, 1ULL << 32}) {
    for (const std::uint64_t purpose : {0ULL, 1ULL, 1ULL << 32}) {
      for (const std::uint64_t index : {0ULL, 1ULL, 1ULL << 32}) {
        seen.insert(RandomStream(seed, purpose).bits(index));
      }
    }
  }
  EXPECT_EQ(seen.size(), 27U) << "all 64 bits of seed, stream and index count";
}

// The mean of n uniforms has standard deviation 1/sqrt(12 n), their variance one of about
// 0.0745/sqrt(n) (from the fourth moment, 1/80); six of them are allowed.
TEST(RandomStream, uniform_lies_in_the_unit_interval_with_its_moments) {
  const RandomStream stream(1, 2);
  constexpr int n = 200'000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < n; ++i) {
    const double x = stream.uniform(static_cast<std::uint64_t>(i));
    ASSERT_GE(x, 0);
    ASSERT_LT(x, 1);
    sum += x;
    squares += (x - 0.5) * (x - 0.5);
  }
  EXPECT_NEAR(sum / n, 0.5, 6 / std::sqrt(12.0 * n));
  EXPECT_NEAR(squares / n, 1.0 / 12, 6 * 0.0745 / std::sqrt(n));
}

// For a standard normal the mean, variance and fourth moment of n samples have standard deviations
// 1/sqrt(n), sqrt(2/n) and sqrt(96/n); six of them are allowed.
TEST(RandomStream, normal_has_the_moments_of_a_standard_normal) {
  const RandomStream stream(3, 4);
  constexpr int n = 200'000;
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  for (int i = 0; i < n; ++i) {
    const double x = stream.normal(static_cast<std::uint64_t>(i));
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / n, 0, 6 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 6 * std::sqrt(2.0 / n));
  EXPECT_NEAR(fourth / n, 3, 6 * std::sqrt(96.0 / n));
}

// A count of n/b expected has standard deviation below sqrt(n/b).
TEST(RandomStream, below_reaches_every_value_alike_and_none_beyond) {
  const RandomStream stream(5, 6);
  constexpr int n = 70'000;
  std::array<int, 7> counts{};
  for (int i = 0; i < n; ++i) {
    const std::uint64_t value = stream.below(static_cast<std::uint64_t>(i), counts.size());
    ASSERT_LT(value, counts.size());
    ++counts.at(value);
  }
  for (const int count : counts) EXPECT_NEAR(count, n / 7, 6 * std::sqrt(n / 7.0));
  EXPECT_EQ(stream.below(9, 1), 0U);
}

}  // namespace
}  // namespace terrace
