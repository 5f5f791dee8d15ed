#include "terrace/engine/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>

#include "terrace/core/error.h"

namespace terrace::engine {
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
}

}  // namespace
}  // namespace terrace::engine
