#include "terrace/data/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "terrace/core/error.h"

namespace terrace {
namespace {

using data::Permutation;

std::vector<std::int64_t> order(std::uint64_t seed, std::int64_t epoch, std::int64_t count) {
  const Permutation permutation(seed, epoch, count);
  std::vector<std::int64_t> numbers;
  for (std::int64_t index = 0; index < count; ++index) numbers.push_back(permutation(index));
  return numbers;
}

TEST(Permutation, holds_every_number_once) {
  for (const std::int64_t count :
       {1, 2, 3, 15, 16, 17, 255, 256, 257, 1000, 1023, 1024, 1025, 4096, 4097, 70001}) {
    std::vector<std::int64_t> numbers = order(7, 3, count);
    std::ranges::sort(numbers);
    for (std::int64_t index = 0; index < count; ++index) {
      ASSERT_EQ(numbers[static_cast<std::size_t>(index)], index) << "of " << count;
    }
  }
}

TEST(Permutation, is_a_function_of_seed_epoch_and_index) {
  const std::vector<std::int64_t> first = order(7, 0, 500);
  EXPECT_EQ(first, order(7, 0, 500));
  EXPECT_NE(first, order(7, 1, 500));
  EXPECT_NE(first, order(8, 0, 500));
  EXPECT_NE(first, order(7 + (std::uint64_t{1} << 32), 0, 500));
  EXPECT_NE(first, order(7, std::int64_t{1} << 32, 500));
}

// A release that changed the order would make every saved position mean other samples.
TEST(Permutation, the_order_is_kept_across_releases) {
  const std::vector<std::int64_t> pinned = {8, 7, 1, 5, 2, 0, 3, 4, 9, 6};
  EXPECT_EQ(order(42, 0, 10), pinned);
}

TEST(Permutation, stays_inside_a_huge_range) {
  const std::int64_t count = (std::int64_t{1} << 62) - 57;
  const Permutation permutation(1, 2, count);
  std::set<std::int64_t> seen;
  for (std::int64_t index = 0; index < 1000; ++index) {
    const std::int64_t number = permutation(count - 1 - index);
    ASSERT_GE(number, 0);
    ASSERT_LT(number, count);
    seen.insert(number);
  }
  EXPECT_EQ(seen.size(), 1000U);
}

// Where number 0 to 6 lands over 7000 epochs: 49 cells of 1000 expected, 36 degrees of freedom. Chi
// squared has mean 36 and deviation sqrt(72) = 8.5; a random order exceeds 36 + 6 x 8.5 = 87 with a
// chance below 1e-5, and these epochs are fixed.
TEST(Permutation, every_number_lands_everywhere_equally_often) {
  constexpr std::int64_t kCount = 7;
  constexpr int kEpochs = 7000;
  double cells[kCount][kCount] = {};
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const Permutation permutation(42, epoch, kCount);
    for (std::int64_t index = 0; index < kCount; ++index) ++cells[index][permutation(index)];
  }
  constexpr double kExpected = static_cast<double>(kEpochs) / kCount;
  double chi_squared = 0;
  for (const auto& row : cells) {
    for (const double found : row) chi_squared += std::pow(found - kExpected, 2) / kExpected;
  }
  EXPECT_LT(chi_squared, 87);
  EXPECT_GT(chi_squared, 5);  // more even than chance is not random either
}

// Neighbours in the order are independent: their correlation over n numbers has the deviation
// 1 / sqrt(n), and 5 of these are allowed.
TEST(Permutation, neighbours_are_not_correlated) {
  constexpr std::int64_t kCount = 20000;
  const std::vector<std::int64_t> numbers = order(42, 0, kCount);
  const double mean = (kCount - 1) / 2.0;
  double covariance = 0;
  double variance = 0;
  for (std::size_t index = 0; index + 1 < numbers.size(); ++index) {
    const double here = static_cast<double>(numbers[index]) - mean;
    covariance += here * (static_cast<double>(numbers[index + 1]) - mean);
    variance += here * here;
  }
  EXPECT_LT(std::abs(covariance / variance), 5 / std::sqrt(kCount));
}

TEST(Permutation, refuses_a_place_outside) {
  const Permutation permutation(1, 0, 5);
  EXPECT_THROW(static_cast<void>(permutation(5)), Error);
  EXPECT_THROW(static_cast<void>(permutation(-1)), Error);
  EXPECT_THROW(Permutation(1, 0, 0), Error);
}

}  // namespace
}  // namespace terrace
