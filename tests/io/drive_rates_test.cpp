#include "terrace/io/drive_rates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "io/temporary_folder.h"
#include "terrace/core/units.h"

namespace terrace::io {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

auto near(double value) { return DoubleNear(value, 1e-6); }

TEST(DriveRates, a_drive_is_measured_and_left_as_it_was) {
  const terrace::testing::TemporaryFolder folder;
  const DriveRates rates = measure_drive(folder.path(), 8 * kMiB, {.depth = 4});
  EXPECT_GT(rates.read, 0.0);
  EXPECT_GT(rates.write, 0.0);
  EXPECT_GT(rates.mixed, 0.0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(DriveRates, turns_are_taken_where_mixing_loses_more_than_they_cost) {
  // Alone 3 and 1, in turns 1.5, both counted.
  EXPECT_DOUBLE_EQ((DriveRates{3e9, 1e9, 0}.apart()), 1.5e9);
  const DriveRates loses[] = {{3e9, 1e9, 1.1e9}};
  const DriveRates hardly[] = {{3e9, 1e9, 1.3e9}};
  const DriveRates together[] = {{3e9, 1e9, 1.1e9}, {3e9, 1e9, 1.9e9}};
  EXPECT_TRUE(better_apart(loses));
  EXPECT_FALSE(better_apart(hardly));
  EXPECT_FALSE(better_apart(together)) << "all drives of a store do the same";
}

TEST(DriveRates, a_drive_weighs_what_it_moves_in_the_way_it_is_used) {
  const DriveRates drives[] = {{3, 1, 1.2}, {1, 1, 0.8}};
  EXPECT_THAT(weights_of(drives, true), ElementsAre(near(1.5), near(1)));
  EXPECT_THAT(weights_of(drives, false), ElementsAre(near(1.2), near(0.8)));
}

TEST(DriveRates, no_share_is_above_what_is_free) {
  const std::uint64_t plenty[] = {100 * kGiB, 100 * kGiB};
  EXPECT_THAT(within_free_space({3, 1}, plenty, kGiB), ElementsAre(near(0.75), near(0.25)));
  // The first one takes half at most, so that the other two share the rest as 1 to 2; then the
  // last one is full too.
  const std::uint64_t first[] = {kGiB, 100 * kGiB, 100 * kGiB};
  EXPECT_THAT(within_free_space({7, 1, 2}, first, 2 * kGiB),
              ElementsAre(near(0.49), near(0.17), near(0.34)));
  const std::uint64_t both[] = {kGiB, 100 * kGiB, kGiB / 2};
  EXPECT_THAT(within_free_space({7, 1, 2}, both, 2 * kGiB),
              ElementsAre(near(0.49), near(0.265), near(0.245)));
}

TEST(DriveRates, what_does_not_fit_is_spread_over_what_is_free_and_left_to_be_refused) {
  const std::uint64_t little[] = {kGiB, 3 * kGiB, 0};
  const std::vector<double> shares = within_free_space({1, 1, 1}, little, 8 * kGiB);
  EXPECT_THAT(shares, ElementsAre(near(0.98 / 8), near(0.98 * 3 / 8), near(0)));
  EXPECT_GT(shares[2], 0.0) << "a weight is above 0";
}

}  // namespace
}  // namespace terrace::io
