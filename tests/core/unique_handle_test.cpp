#include "terrace/core/unique_handle.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <utility>

namespace terrace {
namespace {

bool is_open(int descriptor) { return ::fcntl(descriptor, F_GETFD) != -1; }

FileDescriptor open_null() { return FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

TEST(FileDescriptor, closes_at_the_end_of_its_scope) {
  int number = -1;
  {
    const FileDescriptor file = open_null();
    ASSERT_TRUE(file);
    number = file.get();
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(FileDescriptor, moving_hands_over_and_closes_what_was_held) {
  FileDescriptor first = open_null();
  FileDescriptor second = open_null();
  const int kept = first.get();
  const int closed = second.get();
  second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_EQ(second.get(), kept);
  EXPECT_TRUE(is_open(kept));
  EXPECT_FALSE(is_open(closed));
}

TEST(FileDescriptor, released_is_the_callers_to_close) {
  FileDescriptor file = open_null();
  const int number = file.release();
  EXPECT_FALSE(file);
  file.reset();
  ASSERT_TRUE(is_open(number));
  EXPECT_EQ(::close(number), 0);
}

}  // namespace
}  // namespace terrace
