#include "terrace/optim/step_counter.h"

#include <gtest/gtest.h>

namespace terrace::optim {
namespace {

TEST(StepCounter, a_skipped_step_does_not_advance_the_updates) {
  StepCounter counter;
  EXPECT_EQ(counter.next_update(), 1);
  counter.count_update();
  counter.count_skip();
  counter.count_skip();
  EXPECT_EQ(counter.next_update(), 2);
  EXPECT_EQ(counter.state().skipped, 2);
  EXPECT_EQ(counter.state().skipped_in_a_row, 2);
  counter.count_update();
  EXPECT_EQ(counter.state().skipped_in_a_row, 0);
  EXPECT_EQ(counter.state().updates, 2);
}

TEST(StepCounter, gives_up_at_the_nth_skip_in_a_row) {
  StepCounter counter(3);
  counter.count_skip();
  counter.count_skip();
  counter.count_update();
  counter.count_skip();
  counter.count_skip();
  EXPECT_FALSE(counter.gives_up());
  counter.count_skip();
  EXPECT_TRUE(counter.gives_up());
  counter.count_update();
  EXPECT_FALSE(counter.gives_up());
}

TEST(StepCounter, zero_never_stops) {
  StepCounter counter(0);
  for (int i = 0; i < 1000; ++i) counter.count_skip();
  EXPECT_EQ(counter.state().skipped_in_a_row, 1000);
  EXPECT_FALSE(counter.gives_up());
}

}  // namespace
}  // namespace terrace::optim
