#include "terrace/core/line_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

namespace terrace {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

/// A pipe as small as the kernel makes one.
class Pipe {
 public:
  Pipe() {
    EXPECT_EQ(::pipe2(ends_.data(), O_CLOEXEC), 0);
    EXPECT_GE(::fcntl(ends_[1], F_SETPIPE_SZ, 4096), 4096);
  }
  ~Pipe() {
    close_reader();
    ::close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  [[nodiscard]] int writer() const { return ends_[1]; }
  void close_reader() {
    if (ends_[0] >= 0) ::close(ends_[0]);
    ends_[0] = -1;
  }
  [[nodiscard]] std::string read(std::size_t bytes) const {
    std::string text(bytes, '\0');
    for (std::size_t got = 0; got < bytes;) {
      const ssize_t more = ::read(ends_[0], text.data() + got, bytes - got);
      if (more <= 0) break;
      got += static_cast<std::size_t>(more);
    }
    return text;
  }

 private:
  std::array<int, 2> ends_{};
};

TEST(LineWriter, has_written_a_line_on_return) {
  const Pipe pipe;
  LineWriter writer(pipe.writer());
  writer.write("one\n");
  writer.write("two\n");
  EXPECT_EQ(pipe.read(8), "one\ntwo\n");
  EXPECT_EQ(writer.losses().lines, 0);
}

TEST(LineWriter, counts_what_a_pipe_without_a_reader_does_not_take) {
  Pipe pipe;
  LineWriter writer(pipe.writer());
  pipe.close_reader();
  writer.write("one\ntwo\n");  // SIGPIPE would end the test
  writer.write("three\n");
  const LineWriter::Losses losses = writer.losses();
  EXPECT_EQ(losses.lines, 3);
  EXPECT_EQ(losses.error, EPIPE);
  EXPECT_THAT(losses.since, EndsWith("Z"));
}

TEST(LineWriter, does_not_wait_for_a_reader_that_sleeps_and_loses_nothing_that_it_reads_later) {
  const Pipe pipe;
  LineWriter writer(pipe.writer());
  const std::string line(1000, 'x');
  constexpr int kLines = 40;
  for (int i = 0; i < kLines; ++i) writer.write(line + "\n");
  const LineWriter::Losses waiting = writer.losses();
  EXPECT_GT(waiting.lines, 30);
  EXPECT_EQ(waiting.error, EAGAIN);
  EXPECT_THAT(pipe.read(kLines * (line.size() + 1)), StartsWith(line + "\n" + line));
  writer.write("end\n");
  EXPECT_EQ(pipe.read(4), "end\n");
  EXPECT_EQ(writer.losses().lines, 0);
}

TEST(LineWriter, keeps_no_more_for_a_reader_that_sleeps_than_it_has_room_for) {
  const Pipe pipe;
  LineWriter writer(pipe.writer());
  const std::string line(std::size_t{1} << 18, 'x');
  for (int i = 0; i < 10; ++i) writer.write(line + "\n");
  EXPECT_EQ(writer.losses().lines, 10);
}  // and does not wait for it at the end

TEST(LineWriter, waits_for_room_where_somebody_has_made_the_descriptor_non_blocking) {
  const Pipe pipe;
  ASSERT_EQ(::fcntl(pipe.writer(), F_SETFL, O_NONBLOCK), 0);
  LineWriter writer(pipe.writer());
  const std::string text(20'000, 'x');
  writer.write(text);
  EXPECT_EQ(pipe.read(text.size()), text);
}

}  // namespace
}  // namespace terrace
