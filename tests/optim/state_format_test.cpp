#include "terrace/optim/state_format.h"

#include <gtest/gtest.h>

#include <array>

namespace terrace::optim {
namespace {

TEST(StateFormat, bytes_are_those_of_the_design) {
  const StateFormat fp32;
  const StateFormat split{MasterFormat::split, DType::f32};
  const StateFormat narrow{MasterFormat::split, DType::bf16};
  EXPECT_EQ(state_bytes_per_parameter(OptimizerType::adamw, fp32), 12U);
  EXPECT_EQ(state_bytes_per_parameter(OptimizerType::adamw, split), 10U);
  EXPECT_EQ(state_bytes_per_parameter(OptimizerType::adam, narrow), 6U);
  EXPECT_EQ(state_bytes_per_parameter(OptimizerType::adagrad, fp32), 8U);
  EXPECT_EQ(state_bytes_per_parameter(OptimizerType::lion, split), 6U);
}

TEST(StateFormat, entries_are_what_the_optimizer_uses) {
  const StateFormat split{MasterFormat::split, DType::bf16};
  EXPECT_EQ(state_entries(OptimizerType::adamw, split),
            (std::vector<StateEntry>{
                {StateKind::master, 2}, {StateKind::exp_avg, 2}, {StateKind::exp_avg_sq, 2}}));
  EXPECT_EQ(state_entries(OptimizerType::adagrad, {}),
            (std::vector<StateEntry>{{StateKind::master, 4}, {StateKind::exp_avg_sq, 4}}));
  EXPECT_EQ(state_entries(OptimizerType::lion, {}),
            (std::vector<StateEntry>{{StateKind::master, 4}, {StateKind::exp_avg, 4}}));
}

TEST(StateFormat, adamw_and_adam_alone_share_moments) {
  constexpr std::array kTypes = {OptimizerType::adamw, OptimizerType::adam, OptimizerType::adagrad,
                                 OptimizerType::lion};
  for (const OptimizerType one : kTypes) {
    for (const OptimizerType other : kTypes) {
      if (share_moments(one, other)) {
        EXPECT_EQ(moments_of(one), moments_of(other));
      }
      EXPECT_EQ(share_moments(one, other),
                one == other || (one <= OptimizerType::adam && other <= OptimizerType::adam));
    }
  }
}

TEST(StateFormat, names_are_deepspeeds) {
  EXPECT_EQ(optimizer_type_named("AdamW"), OptimizerType::adamw);
  EXPECT_EQ(optimizer_type_named("adam"), OptimizerType::adam);
  EXPECT_EQ(optimizer_type_named("LION"), OptimizerType::lion);
  EXPECT_FALSE(optimizer_type_named("Adam8bit").has_value());
  EXPECT_FALSE(optimizer_type_named("").has_value());
  EXPECT_EQ(master_format_named("split"), MasterFormat::split);
  EXPECT_FALSE(master_format_named("Split").has_value());
}

}  // namespace
}  // namespace terrace::optim
