#include "terrace/core/error.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "core/error_of.h"
#include "terrace/core/workers.h"

namespace terrace {
namespace {

/// An argument that knows how often it was turned into text.
struct CountsFormatting {
  int* count;
};

}  // namespace
}  // namespace terrace

template <>
struct fmt::formatter<terrace::CountsFormatting> : fmt::formatter<int> {
  auto format(const terrace::CountsFormatting& value, fmt::format_context& context) const {
    return fmt::formatter<int>::format(++*value.count, context);
  }
};

namespace terrace {
namespace {

TEST(Fail, throws_its_sentence_its_kind_and_the_line_it_stands_on) {
  int line = 0;
  try {
    line = __LINE__ + 1;
    fail(ErrorKind::data, "{} has {} tokens, {} are needed", "a.bin", 7, 128);
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a.bin has 7 tokens, 128 are needed");
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.file(), ::testing::EndsWith("error_test.cpp"));
    EXPECT_EQ(error.line(), line);
    return;
  }
  FAIL() << "did not throw";
}

TEST(Require, throws_only_when_the_condition_does_not_hold) {
  EXPECT_NO_THROW(require(true, ErrorKind::usage, "{}", 1));
  try {
    require(false, ErrorKind::usage, "key {} is unknown", "lerning_rate");
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "key lerning_rate is unknown");
    EXPECT_THAT(error.file(), ::testing::EndsWith("error_test.cpp"));
  }
}

TEST(Require, builds_its_message_only_on_failure) {
  int formatted = 0;
  require(true, ErrorKind::internal, "{}", CountsFormatting{&formatted});
  EXPECT_EQ(formatted, 0);
  EXPECT_THROW(require(false, ErrorKind::internal, "{}", CountsFormatting{&formatted}), Error);
  EXPECT_EQ(formatted, 1);
}

TEST(ExitCode, is_the_documented_one_of_each_kind) {
  EXPECT_EQ(exit_code(ErrorKind::internal), 1);
  EXPECT_EQ(exit_code(ErrorKind::usage), 2);
  EXPECT_EQ(exit_code(ErrorKind::does_not_fit), 3);
  EXPECT_EQ(exit_code(ErrorKind::data), 4);
  EXPECT_EQ(exit_code(ErrorKind::corrupt), 4);
  EXPECT_EQ(exit_code(ErrorKind::io), 5);
  EXPECT_EQ(exit_code(ErrorKind::comm), 6);
  EXPECT_EQ(exit_code(ErrorKind::numerics), 7);
  EXPECT_EQ(exit_code(ErrorKind::device), 8);
  EXPECT_EQ(exit_code(ErrorKind::out_of_memory), 8);
}

TEST(ErrnoName, gives_the_symbol_and_the_words) {
  EXPECT_EQ(errno_name(ENOSPC), "ENOSPC (No space left on device)");
  EXPECT_THAT(errno_name(99999), ::testing::HasSubstr("99999"));
}

TEST(Error, of_a_layer_names_its_source_as_it_lies_in_the_tree) {
  const Error error = testing::error_of([] {
    const ThreadCount uneven{3, "a test", {{{0, {}}, 1}, {{1, {}}, 1}}};
    return std::make_unique<Workers>(uneven);
  });
  EXPECT_EQ(error.kind(), ErrorKind::internal);
  EXPECT_STREQ(error.file(), "src/core/workers.cpp");
}

}  // namespace
}  // namespace terrace
