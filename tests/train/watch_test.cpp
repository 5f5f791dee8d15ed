#include "terrace/train/watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <future>
#include <limits>
#include <memory>

namespace terrace::train {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// A watch whose first line can be waited for.
class WatchTest : public ::testing::Test {
 protected:
  ~WatchTest() override { std::fclose(file_); }

  /// Watches from now on.
  Watch& watch(double patience_seconds = std::numeric_limits<double>::infinity()) {
    watch_ = std::make_unique<Watch>(signal_, terminal_, log_, patience_seconds);
    return *watch_;
  }
  std::string first_line() { return first_.get_future().get(); }

  std::atomic<int> signal_{0};

 private:
  std::FILE* file_ = std::fopen("/dev/null", "w");
  Terminal terminal_{file_, false};
  std::promise<std::string> first_;
  int lines_ = 0;
  Log log_{[this](LogLevel, std::string_view line) {
    if (lines_++ == 0) first_.set_value(std::string(line));
  }};
  std::unique_ptr<Watch> watch_;
};

TEST_F(WatchTest, answers_the_first_signal_before_the_step_is_over) {
  watch().answer({.safe = "step 12 is safe", .doing = "step 13", .seconds = 1000});
  signal_ = SIGTERM;
  EXPECT_THAT(first_line(), AllOf(HasSubstr("signal 15: step 12 is safe; the run stops when step "
                                            "13 is done, in about 16 min"),
                                  HasSubstr("a second signal stops it at once")));
}

TEST_F(WatchTest, announces_the_save_that_follows_the_step_with_its_time) {
  watch().answer({.safe = "nothing is saved yet",
                  .doing = "step 13",
                  .seconds = 1000,
                  .then = "a checkpoint is saved",
                  .then_seconds = 2600});
  signal_ = SIGHUP;
  EXPECT_THAT(first_line(), HasSubstr("signal 1: nothing is saved yet; the run stops when step 13 "
                                      "is done and a checkpoint is saved, in about "));
}

TEST_F(WatchTest, names_no_time_where_a_part_of_it_is_not_known) {
  watch().answer(
      {.doing = "step 1", .seconds = 1e-9, .then = "a checkpoint is saved", .then_seconds = 2});
  signal_ = SIGTERM;
  EXPECT_THAT(first_line(), AllOf(HasSubstr("when step 1 is done and a checkpoint is saved;"),
                                  Not(HasSubstr("in about"))));
}

TEST_F(WatchTest, says_that_what_may_be_cut_short_is_and_what_comes_then) {
  Watch& watch = this->watch();
  watch.answer({.doing = "step 13", .seconds = 1000, .then = "a checkpoint is saved"});
  Activity evaluating(watch, "evaluating after step 12", {.noun = "sequence"});
  evaluating.advance(1, 40);
  signal_ = SIGTERM;
  EXPECT_THAT(first_line(), StartsWith("signal 15: evaluating after step 12 is cut short, then a "
                                       "checkpoint is saved; a second"));
  try {
    evaluating.advance(2, 40);
    FAIL() << "it goes on";
  } catch (const Stopped& stopped) {
    EXPECT_EQ(stopped.signal(), SIGTERM);
    EXPECT_STREQ(stopped.what(), "stopped by signal 15 while evaluating after step 12");
  }
  EXPECT_THROW(Activity(watch, "loading"), Stopped);
}

TEST_F(WatchTest, lets_go_on_what_goes_to_its_end) {
  Watch& watch = this->watch();
  Activity saving(watch, "saving the model", {.to_the_end = true});
  signal_ = SIGTERM;
  EXPECT_THAT(first_line(), HasSubstr("the run stops when saving the model is done"));
  EXPECT_NO_THROW(saving.advance(1, 2));
  EXPECT_NO_THROW(Activity(watch, "removing the store", {.to_the_end = true}));
}

TEST_F(WatchTest, tells_what_lasts_and_how_far_it_is) {
  Watch& watch = this->watch(0);
  const Activity removing(watch, "removing the store", {.total = 3ULL << 30, .to_the_end = true});
  EXPECT_EQ(first_line(), "removing the store (3.00 GiB)");
}

TEST_F(WatchTest, tells_how_much_of_it_is_done) {
  Watch& watch = this->watch(0);
  Activity evaluating(watch, "evaluating", {.noun = "sequence", .total = 40});
  EXPECT_EQ(first_line(), "evaluating (40 sequences)");
}

TEST(WatchOnATerminal, takes_its_line_away_when_what_lasted_is_over) {
  std::FILE* file = std::tmpfile();
  const std::atomic<int> signal{0};
  {
    Log log([](LogLevel, std::string_view) {});
    Terminal terminal(file, true);
    terminal.progress("step 1");
    Watch watch(signal, terminal, log, 0);
    {
      const Activity loading(watch, "loading", {.total = 4});
      // Not by the stream, which would move where the other thread writes.
      const auto written = [&] {
        struct stat status {};
        return ::fstat(::fileno(file), &status) == 0 ? status.st_size : 0;
      };
      while (written() < 20) {
      }
    }
  }
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  EXPECT_THAT(text, StartsWith("step 1\r\x1b[Kloading (4 B)"));
  EXPECT_THAT(text, EndsWith("\r\x1b[Kstep 1\n"));
}

}  // namespace
}  // namespace terrace::train
