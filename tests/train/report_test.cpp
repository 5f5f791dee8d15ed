#include "terrace/train/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace terrace::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// What is written to a stream, as text.
class Written {
 public:
  Written() : file_(std::tmpfile()) {}
  ~Written() { std::fclose(file_); }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;
  [[nodiscard]] std::FILE* stream() const { return file_; }
  [[nodiscard]] std::string text() const {
    std::rewind(file_);
    std::string result;
    for (int c = std::fgetc(file_); c != EOF; c = std::fgetc(file_)) {
      result += static_cast<char>(c);
    }
    return result;
  }

 private:
  std::FILE* file_;
};

TEST(Aligned, pads_by_columns_and_leaves_no_trailing_spaces) {
  constexpr std::array<std::size_t, 1> right = {1};
  EXPECT_EQ(aligned({{"a", "1", "x"}, {"µµµ", "22"}, {"b", "333", "yy"}}, right),
            "a      1  x\nµµµ   22\nb    333  yy\n");
}

TEST(Facts, name_every_number_of_the_optimizer) {
  config::Settings settings;
  settings.optimizer.weight_decay = 0.1;
  settings.optimizer.epsilon = 1e-6;
  const std::string table = settings_table(config::facts_of(settings));
  EXPECT_THAT(table, HasSubstr("AdamW, betas 0.9 and 0.999, eps 1e-06, weight decay 0.1"));
  EXPECT_THAT(table, HasSubstr("matrices only"));
  EXPECT_THAT(table, HasSubstr("12 bytes a parameter"));
  EXPECT_THAT(table, HasSubstr("norm 1"));
}

TEST(TimeLeft, is_not_thrown_by_one_slow_step) {
  TimeLeft left;
  EXPECT_EQ(left.seconds(10), 0);
  for (int i = 0; i < 100; ++i) left.add_step(1);
  EXPECT_NEAR(left.seconds(10), 10, 1e-9);
  left.add_step(5);
  EXPECT_LT(left.seconds(10), 18);
  EXPECT_EQ(left.seconds(-1), 0);
}

TEST(Terminal, writes_plain_lines_where_nothing_can_be_rewritten) {
  const Written written;
  {
    Terminal terminal(written.stream());
    EXPECT_FALSE(terminal.rewrites());
    terminal.progress("step 1");
    terminal.progress("step 2");
    terminal.sink()(LogLevel::warning, "hot");
  }
  EXPECT_EQ(written.text(), "step 1\nstep 2\nwarning: hot\n");
}

TEST(Terminal, keeps_the_live_line_below_what_is_printed) {
  const Written written;
  {
    Terminal terminal(written.stream(), true);
    terminal.progress("step 1");
    terminal.print("a line");
    terminal.progress("step 2");
  }
  EXPECT_EQ(written.text(), "step 1\r\x1b[Ka line\nstep 1\r\x1b[Kstep 2\n");
}

TEST(GenerationLine, has_speed_and_the_most_that_is_left) {
  TimeLeft time_left;
  time_left.add_step(0.00390625);
  EXPECT_EQ(generation_line(1000, 100'000, time_left),
            "token 1000/100000  256 tokens/s  at most 6 min 27 s left");
  EXPECT_EQ(generation_line(100, 100, time_left), "token 100/100  256 tokens/s");
  TimeLeft slow;
  slow.add_step(2);
  EXPECT_EQ(generation_line(9, 10, slow), "token 9/10  0.5 tokens/s  at most 2.0 s left");
  TimeLeft fair;
  fair.add_step(1 / 99.7);
  EXPECT_EQ(generation_line(10, 10, fair), "token 10/10  99 tokens/s");
}

TEST(ProgressLine, has_loss_speed_wait_and_time_left) {
  const std::string line = progress_line({.step = 3,
                                          .steps = 10,
                                          .loss = 2.5,
                                          .tokens_per_second = 12345,
                                          .step_seconds = 0.5,
                                          .waited_for = "disk-read 12%",
                                          .seconds_left = 90});
  EXPECT_THAT(line, HasSubstr("step 3/10"));
  EXPECT_THAT(line, HasSubstr("loss 2.5000"));
  EXPECT_THAT(line, HasSubstr("12.3k tokens/s"));
  EXPECT_THAT(line, HasSubstr("waited disk-read 12%"));
  EXPECT_THAT(line, HasSubstr("1 min 30 s left"));
  EXPECT_THAT(progress_line({.step = 10, .steps = 10}), Not(HasSubstr("left")));
}

}  // namespace
}  // namespace terrace::train
