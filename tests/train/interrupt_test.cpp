#include "terrace/train/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>

#include "terrace/core/error.h"

namespace terrace::train {
namespace {

TEST(Interrupt, notes_the_first_signal) {
  const Interrupt interrupt;
  EXPECT_EQ(interrupt.signal(), 0);
  std::raise(SIGTERM);
  EXPECT_EQ(interrupt.signal(), SIGTERM);
  EXPECT_EQ(interrupt.flag().load(), SIGTERM);
}

TEST(Interrupt, starts_afresh_and_exists_once) {
  { const Interrupt first; }
  const Interrupt second;
  EXPECT_EQ(second.signal(), 0);
  EXPECT_THROW(Interrupt(), Error);
}

TEST(InterruptDeathTest, the_second_signal_ends_the_process_at_once) {
  const auto twice = [](int first, int second) {
    const Interrupt interrupt;
    std::raise(first);
    std::raise(second);
  };
  EXPECT_EXIT(twice(SIGINT, SIGINT), ::testing::ExitedWithCode(130), "");
  EXPECT_EXIT(twice(SIGINT, SIGTERM), ::testing::ExitedWithCode(143), "");
  EXPECT_EXIT(twice(SIGHUP, SIGTERM), ::testing::ExitedWithCode(143), "");
}

TEST(Interrupt, takes_no_hangup_for_a_second_signal) {
  const Interrupt interrupt;
  std::raise(SIGHUP);
  std::raise(SIGHUP);
  EXPECT_EQ(interrupt.signal(), SIGHUP);
}

TEST(Interrupt, leaves_alone_what_was_ignored) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const auto former = std::signal(signal, SIG_IGN);
    {
      const Interrupt interrupt;
      std::raise(signal);
      EXPECT_EQ(interrupt.signal(), 0);
    }
    EXPECT_EQ(std::signal(signal, former), SIG_IGN);
  }
}

}  // namespace
}  // namespace terrace::train
