#include "range_map.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <utility>

namespace terrace::plan {
namespace {

constexpr std::uint64_t kBytes = 40;

/// The numbers of all bytes, as the parts of a range tell them, and how many parts there are.
std::pair<std::array<std::int64_t, kBytes>, int> numbers_of(const RangeMap& map,
                                                            std::uint64_t begin,
                                                            std::uint64_t end) {
  std::array<std::int64_t, kBytes> numbers;
  numbers.fill(RangeMap::kNone);
  int parts = 0;
  std::uint64_t next = begin;
  map.for_each(begin, end, [&](std::uint64_t first, std::uint64_t last, std::int64_t number) {
    EXPECT_EQ(first, next);
    EXPECT_LT(first, last);
    for (std::uint64_t at = first; at < last; ++at) numbers[at] = number;
    next = last;
    ++parts;
  });
  EXPECT_EQ(next, end);
  return {numbers, parts};
}

TEST(RangeMap, holds_what_each_byte_was_last_given) {
  constexpr unsigned kSeed = 20'261'130;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 200 && !::testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << ", round " << round);
    RangeMap map;
    std::array<std::int64_t, kBytes> expected;
    expected.fill(RangeMap::kNone);
    for (std::int64_t number = 0; number < 30; ++number) {
      const std::uint64_t begin = random() % kBytes;
      const std::uint64_t end = begin + random() % (kBytes - begin + 1);
      const bool erased = random() % 4 == 0;
      erased ? map.erase(begin, end) : map.assign(begin, end, number);
      for (std::uint64_t at = begin; at < end; ++at) {
        expected[at] = erased ? RangeMap::kNone : number;
      }
      ASSERT_EQ(numbers_of(map, 0, kBytes).first, expected);
      const auto some = numbers_of(map, begin, end).first;
      for (std::uint64_t at = begin; at < end; ++at) ASSERT_EQ(some[at], expected[at]);
    }
  }
}

TEST(RangeMap, a_range_of_one_number_is_one_part_whatever_was_there) {
  RangeMap map;
  for (std::uint64_t at = 0; at < kBytes; at += 2) map.assign(at, at + 1, 7);
  EXPECT_EQ(numbers_of(map, 0, kBytes).second, 40);
  map.assign(0, kBytes, 8);
  EXPECT_EQ(numbers_of(map, 0, kBytes).second, 1);
}

}  // namespace
}  // namespace terrace::plan
