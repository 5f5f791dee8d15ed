#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <tuple>

#include "train/state_choices.h"

// What state_choices_test shows of each form of the state on some tier, in full.

namespace terrace::train::testing {
namespace {

class StateProduct : public StateChoicesTest,
                     public ::testing::WithParamInterface<std::tuple<std::string, std::string>> {};

TEST_P(StateProduct, works_to_the_end_or_is_refused_at_the_start) {
  const auto& [type, format] = GetParam();
  int works = 0;
  int refused = 0;
  for (const StateChoice& choice : all_state_choices()) {
    if (choice.at("optimizer.type") != type) continue;
    if (choice.at("optimizer.state_format") != format) continue;
    for (const DType dtype : {DType::bf16, DType::f32}) {
      SCOPED_TRACE(describe(choice) + std::string(name_of(dtype)));
      config::Settings settings = with(choice);
      settings.numerics.dtype = dtype;
      const bool split = settings.optimizer.state.master == optim::MasterFormat::split;
      // In FP32 the tiers of the parameters take turns.
      if (dtype == DType::f32 && !split && (works + refused) % 2 == 1) continue;
      const bool has_worked = works_to_the_end(settings);
      ASSERT_EQ(has_worked, !split || dtype == DType::bf16);
      ASSERT_FALSE(HasFailure());
      (has_worked ? works : refused) += 1;
    }
  }
  EXPECT_GT(from_stores_, 0);
  std::printf(
      "%d ways to keep the state of %s work to the end, %d of them from a store as well, %d "
      "are refused at the start\n",
      works, (type + " " + format).c_str(), from_stores_, refused);
}

INSTANTIATE_TEST_SUITE_P(
    Every, StateProduct,
    ::testing::Combine(::testing::ValuesIn(choices_of("optimizer.type").choices),
                       ::testing::ValuesIn(choices_of("optimizer.state_format").choices)),
    [](const auto& tested) { return std::get<0>(tested.param) + "_" + std::get<1>(tested.param); });

}  // namespace
}  // namespace terrace::train::testing
