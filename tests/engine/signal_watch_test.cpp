#include "signal_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <future>

namespace terrace::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SignalWatch, answers_the_first_signal_before_the_step_is_over) {
  std::promise<std::string> said;
  Log log([&](LogLevel, std::string_view line) { said.set_value(std::string(line)); });
  std::atomic<int> signal{0};
  SignalWatch watch(signal, log);
  watch.set({"step 12 is safe", "step 13", 1000});
  signal = SIGTERM;
  EXPECT_THAT(said.get_future().get(),
              AllOf(HasSubstr("signal 15"), HasSubstr("step 12 is safe"),
                    HasSubstr("when step 13 is done"), HasSubstr("in about ")));
}

TEST(SignalWatch, says_nothing_without_a_signal) {
  int lines = 0;
  Log log([&](LogLevel, std::string_view) { ++lines; });
  const std::atomic<int> signal{0};
  { SignalWatch watch(signal, log); }
  EXPECT_EQ(lines, 0);
}

}  // namespace
}  // namespace terrace::engine
