#include "terrace/optim/step_counter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/core/error.h"

namespace terrace::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

TEST(StepCounter, a_skipped_step_does_not_advance_the_updates) {
  StepCounter counter;
  EXPECT_EQ(counter.next_update(), 1);
  counter.count_update();
  counter.count_skip("w", "");
  counter.count_skip("w", "");
  EXPECT_EQ(counter.next_update(), 2);
  EXPECT_EQ(counter.state().skipped, 2);
  EXPECT_EQ(counter.state().skipped_in_a_row, 2);
  counter.count_update();
  EXPECT_EQ(counter.state().skipped_in_a_row, 0);
  EXPECT_EQ(counter.state().updates, 2);
}

TEST(StepCounter, stops_at_the_nth_skip_in_a_row_and_names_what_helps) {
  StepCounter counter(3);
  counter.count_skip("w", "");
  counter.count_skip("w", "");
  counter.count_update();
  counter.count_skip("w", "");
  counter.count_skip("w", "");
  EXPECT_THAT(
      [&] { counter.count_skip("model.layers.7.mlp.up_proj.weight", "out/checkpoint-20"); },
      Throws<Error>(AllOf(Property(&Error::kind, ErrorKind::numerics),
                          Property(&Error::what, HasSubstr("model.layers.7.mlp.up_proj.weight")),
                          Property(&Error::what, HasSubstr("out/checkpoint-20")))));
}

TEST(StepCounter, zero_never_stops) {
  StepCounter counter(0);
  for (int i = 0; i < 1000; ++i) counter.count_skip("w", "");
  EXPECT_EQ(counter.state().skipped_in_a_row, 1000);
}

}  // namespace
}  // namespace terrace::optim
