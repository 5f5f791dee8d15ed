#include "terrace/core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "core/error_of.h"

namespace terrace {
namespace {

TEST(Json, is_written_in_the_order_of_its_making) {
  const Json json = {{"b", 1}, {"a", {{"deep", nullptr}}}};
  EXPECT_EQ(json_line(json), R"({"b":1,"a":{"deep":null}})");
  EXPECT_EQ(json_text(json), "{\n  \"b\": 1,\n  \"a\": {\n    \"deep\": null\n  }\n}\n");
}

TEST(Json, a_path_that_is_no_utf8_is_written_with_replacements) {
  const Json json = {{"path", "/data/\xff/run"}};
  EXPECT_EQ(json_line(json), "{\"path\":\"/data/\xEF\xBF\xBD/run\"}");
  EXPECT_EQ(json_from(json_text(json)), json_from(json_line(json)));
}

TEST(Json, nothing_comes_from_what_is_none) {
  EXPECT_EQ(json_from(R"([1, "two"])"), Json::array({1, "two"}));
  for (const char* text : {"", "{", "{} {}", "nul", "{\"a\": 1,}"}) {
    EXPECT_EQ(json_from(text), std::nullopt) << text;
  }
}

TEST(Json, an_object_that_is_none_is_refused_with_its_place) {
  EXPECT_EQ(parse_object(R"({"a": 1})", "f.json", ErrorKind::data), (Json{{"a", 1}}));
  const Error cut = terrace::testing::error_of(
      [] { static_cast<void>(parse_object(R"({"a": 1)", "f.json", ErrorKind::data)); });
  EXPECT_EQ(cut.kind(), ErrorKind::data);
  EXPECT_THAT(cut.what(), ::testing::StartsWith("f.json is not JSON from byte 8 of 7 on;"));
  const Error list = terrace::testing::error_of(
      [] { static_cast<void>(parse_object("[1]", "f.json", ErrorKind::corrupt)); });
  EXPECT_EQ(list.kind(), ErrorKind::corrupt);
  EXPECT_THAT(list.what(), ::testing::StrEq("f.json holds array where a JSON object was expected"));
}

}  // namespace
}  // namespace terrace
