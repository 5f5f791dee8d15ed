#include "terrace/core/indexed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "terrace/core/id.h"

namespace terrace {
namespace {

using Room = Id<struct RoomTag, int>;
using Guest = Id<struct GuestTag, int>;
enum class Meal : std::uint8_t { lunch, dinner };

template <class Container, class Index>
concept indexed_by = requires(Container container, Index index) {
  container[index];
};

TEST(Indexed, is_indexed_by_its_own_type_of_id_alone) {
  static_assert(indexed_by<Indexed<double, Room>, Room>);
  static_assert(!indexed_by<Indexed<double, Room>, Guest>);
  static_assert(!indexed_by<Indexed<double, Room>, int>);
  static_assert(!indexed_by<Indexed<double>, Room>);
  static_assert(indexed_by<EnumArray<Meal, int, 2>, Meal>);
  static_assert(!indexed_by<EnumArray<Meal, int, 2>, int>);
  Indexed<double, Room> prices = {10, 20};
  prices[Room(1)] = 30;
  EXPECT_THAT(prices, ::testing::ElementsAre(10, 30));
  EXPECT_EQ(prices.count(), 2);
}

TEST(Indexed, takes_integers_of_either_sign_where_it_is_indexed_by_a_number) {
  const Indexed<int> numbers = {1, 2, 3};
  EXPECT_EQ(numbers[1], 2);
  EXPECT_EQ(numbers[std::size_t{1}], 2);
  EXPECT_EQ(numbers[std::int64_t{2}], 3);
  Indexed<bool> flags(2, false);  // a vector of bits too
  flags[1] = true;
  EXPECT_THAT(flags, ::testing::ElementsAre(false, true));
}

TEST(EnumArray, has_an_element_for_each_enumerator) {
  EnumArray<Meal, int, 2> guests;
  EXPECT_THAT(guests, ::testing::ElementsAre(0, 0));
  guests[Meal::dinner] = 4;
  EXPECT_EQ(guests, (EnumArray<Meal, int, 2>{0, 4}));
  EXPECT_EQ(guests.size(), 2U);
}

}  // namespace
}  // namespace terrace
