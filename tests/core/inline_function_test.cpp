#include "terrace/core/inline_function.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>

namespace terrace {
namespace {

TEST(InlineFunction, is_empty_until_given_something_and_after_being_moved_from) {
  InlineFunction<> none;
  EXPECT_FALSE(none);
  int calls = 0;
  InlineFunction<> function = [&calls] { ++calls; };
  ASSERT_TRUE(function);
  InlineFunction<> taken = std::move(function);
  EXPECT_FALSE(function);  // NOLINT(bugprone-use-after-move): that is the question
  taken();
  taken();
  EXPECT_EQ(calls, 2);
}

TEST(InlineFunction, destroys_what_it_holds_exactly_once) {
  const auto token = std::make_shared<int>(0);
  {
    InlineFunction<> first = [token] {};
    EXPECT_EQ(token.use_count(), 2);
    InlineFunction<> second = std::move(first);
    EXPECT_EQ(token.use_count(), 2);
    second = InlineFunction<>([] {});
    EXPECT_EQ(token.use_count(), 1);
    first = [token] {};
    EXPECT_EQ(token.use_count(), 2);
  }
  EXPECT_EQ(token.use_count(), 1);
}

TEST(InlineFunction, holds_what_cannot_be_copied_and_keeps_its_state_when_moved) {
  int seen = 0;
  InlineFunction<> function = [owned = std::make_unique<int>(3), &seen] { seen = (*owned)++; };
  function();
  EXPECT_EQ(seen, 3);
  InlineFunction<> moved = std::move(function);
  moved();
  EXPECT_EQ(seen, 4);
}

TEST(InlineFunction, holds_a_callable_as_large_as_its_capacity) {
  int seen = 0;
  struct Callable {
    std::array<int, 14> values;
    int* seen;
    void operator()() const { *seen = values.back(); }
  };
  static_assert(sizeof(Callable) == 64);
  Callable callable{{}, &seen};
  callable.values.back() = 7;
  InlineFunction<64> function = callable;
  InlineFunction<64> moved = std::move(function);
  moved();
  EXPECT_EQ(seen, 7);
}

}  // namespace
}  // namespace terrace
