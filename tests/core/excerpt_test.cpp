#include "terrace/core/excerpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

TEST(Excerpt, is_the_text_or_of_a_long_one_both_ends) {
  EXPECT_EQ(excerpt(""), "");
  EXPECT_EQ(excerpt(std::string(kExcerptBytesMax, 'x')), std::string(kExcerptBytesMax, 'x'));
  const std::string half(kExcerptBytesMax / 2, 'a');
  const std::string other(kExcerptBytesMax / 2, 'z');
  EXPECT_EQ(excerpt(half + "-" + other), half + "..." + other);
  EXPECT_EQ(excerpt(half + std::string(100'000, '-') + other), half + "..." + other);
}

TEST(Excerpt, cuts_no_character_in_two) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "\u20ac";  // three bytes
  const std::string cut = excerpt(text);
  EXPECT_LE(cut.size(), kExcerptBytesMax + 3);
  EXPECT_EQ((cut.size() - 3) % 3, 0U);
  EXPECT_THAT(cut, StartsWith("\u20ac"));
  EXPECT_THAT(cut, EndsWith("\u20ac"));
  EXPECT_EQ(cut.find("..."), (kExcerptBytesMax / 2) / 3 * 3);
}

}  // namespace
}  // namespace terrace
