#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "memory/packing.h"
#include "model/shapes.h"
#include "plan/plans.h"
#include "plan/schedules.h"
#include "terrace/core/error.h"
#include "terrace/kernels/cpu.h"
#include "terrace/plan/plan.h"
#include "terrace/plan/simulate.h"

// Plans for several ranks, see "Note on sharding" in plan.h.

namespace terrace::plan {
namespace {

using memory::Tier;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr StateKind kKinds[] = {StateKind::parameter, StateKind::gradient, StateKind::master,
                                StateKind::exp_avg, StateKind::exp_avg_sq};

class ShardedPlanTest : public ::testing::Test {
 protected:
  ShardedPlanTest() : ops_(kernels::make_cpu_ops({})) {}

  /// Two-byte parameters and gradients and twelve bytes of state, accumulation 1.
  [[nodiscard]] static PlanRequest request(int zero_stage) {
    PlanRequest request;
    request.micro_batch = {1, 8};
    request.gradient = DType::bf16;
    request.state = {{StateKind::master, 4}, {StateKind::exp_avg, 4}, {StateKind::exp_avg_sq, 4}};
    request.zero_stage = zero_stage;
    return request;
  }
  [[nodiscard]] model::Model make_model(const model::Config& config) const {
    return model::Model(config, DType::bf16, *ops_);
  }

  std::unique_ptr<kernels::Ops> ops_;
};

TEST_F(ShardedPlanTest, every_stage_is_packed_and_safe_on_every_tier) {
  const model::Model model = make_model(model::awkward_llama(true));
  int plans = 0;
  for (const int ranks : {2, 3}) {
    const shard::Layout layout(shard::shape_of(model), ranks);
    for (const int stage : {0, 1, 2, 3}) {
      for (const Tier parameters : {Tier::device, Tier::host, Tier::disk}) {
        if (parameters != Tier::device && (stage == 1 || stage == 2)) continue;
        for (const Tier state : {Tier::device, Tier::host, Tier::disk}) {
          for (const auto order : {MicroBatchOrder::batch_major, MicroBatchOrder::unit_major}) {
            PlanRequest request = ShardedPlanTest::request(stage);
            request.placement = {parameters, state, Tier::host, 0};
            request.order = order;
            request.micro_batches = 2;
            request.chunk_elements = 2048;
            SCOPED_TRACE(::testing::Message() << ranks << " ranks, stage " << stage << ", "
                                              << name_of(parameters) << ", " << name_of(state));
            const Plan plan = make_plan(model, layout, request);
            memory::expect_packed(plan.memory);
            EXPECT_THAT(check(plan.training, plan.memory), IsEmpty());
            EXPECT_THAT(check(plan.evaluation, plan.memory), IsEmpty());
            // Each flat's gradient is reduced once a step whatever the number of micro-batches.
            std::size_t reduced = 0;
            for (const Task& task : plan.training.tasks) {
              reduced += task.kind == TaskKind::reduce_flat ? 1 : 0;
            }
            EXPECT_EQ(reduced, layout.flats().size());
            ++plans;
          }
        }
      }
    }
  }
  EXPECT_EQ(plans, 2 * (3 + 1 + 1 + 3) * 3 * 2);
}

TEST_F(ShardedPlanTest, a_part_of_the_parameters_stays_on_a_faster_tier_in_each_ranks_shard) {
  const model::Model model = make_model(model::awkward_llama(true));
  for (const int ranks : {2, 3}) {
    const shard::Layout layout(shard::shape_of(model), ranks);
    for (const auto& [rest, resident] :
         {std::pair(Tier::host, Tier::device), std::pair(Tier::disk, Tier::device),
          std::pair(Tier::disk, Tier::host)}) {
      for (const int stage : {0, 3}) {
        PlanRequest request = ShardedPlanTest::request(stage);
        request.placement = {rest, Tier::disk, Tier::host, 0, resident, 0.5};
        request.may_update_before_decision = true;
        request.chunk_elements = 2048;
        SCOPED_TRACE(::testing::Message() << ranks << " ranks, stage " << stage << ", "
                                          << name_of(rest) << ", " << name_of(resident));
        const Plan plan = make_plan(model, layout, request);
        EXPECT_THAT(check(plan.training, plan.memory), IsEmpty());
        EXPECT_THAT(check(plan.evaluation, plan.memory), IsEmpty());
        request.placement.parameters_resident = 0;
        const Plan streamed = make_plan(model, layout, request);
        EXPECT_EQ(plan.kept_bytes(StateKind::parameter), streamed.kept_bytes(StateKind::parameter));
        EXPECT_EQ(bytes_on(plan, Lane::collective), bytes_on(streamed, Lane::collective));
        EXPECT_LT(bytes_on(plan, Lane::h2d) + bytes_on(plan, Lane::disk_read),
                  bytes_on(streamed, Lane::h2d) + bytes_on(streamed, Lane::disk_read));
      }
    }
  }
}

TEST_F(ShardedPlanTest, one_rank_has_nothing_to_exchange_whatever_the_stage) {
  const model::Model model = make_model(model::awkward_llama(true));
  const shard::Layout layout(shard::shape_of(model), 1);
  const Plan plain = make_plan(model, layout, request(0));
  const Plan sharded = make_plan(model, layout, request(3));
  EXPECT_EQ(bytes_on(sharded, Lane::collective), 0U);
  EXPECT_EQ(sharded.training.tasks.size(), plain.training.tasks.size());
  for (const Tier tier : {Tier::device, Tier::host, Tier::disk}) {
    EXPECT_EQ(sharded.memory.bytes(tier), plain.memory.bytes(tier));
  }
}

TEST_F(ShardedPlanTest, what_ranks_exchange_is_the_published_volume) {
  const model::Model model = make_model(model::awkward_llama(false));
  constexpr int kRanks = 4;
  const shard::Layout layout(shard::shape_of(model), kRanks);
  const auto whole = static_cast<std::uint64_t>(layout.elements()) * 2;
  const std::uint64_t share = whole / kRanks * (kRanks - 1);
  // An all-reduce is a reduce-scatter and an all-gather; stage 3 gathers for forward and backward.
  // The head computes both in one visit, and the embedding's backward reads no parameters.
  EXPECT_EQ(bytes_on(make_plan(model, layout, request(0)), Lane::collective), 2 * share);
  EXPECT_EQ(bytes_on(make_plan(model, layout, request(2)), Lane::collective), 2 * share);
  std::uint64_t once = 0;
  for (const int unit : {0, static_cast<int>(model.units().size()) - 1}) {
    for (const int flat : layout.flats_of_unit(unit)) {
      once += static_cast<std::uint64_t>(layout.flat(flat).elements) * 2 / kRanks * (kRanks - 1);
    }
  }
  EXPECT_EQ(bytes_on(make_plan(model, layout, request(3)), Lane::collective), 3 * share - once);
}

TEST_F(ShardedPlanTest, parameters_off_the_device_need_stage_3) {
  const model::Model model = make_model(model::awkward_llama(true));
  const shard::Layout layout(shard::shape_of(model), 2);
  PlanRequest request = ShardedPlanTest::request(2);
  request.placement.parameters = Tier::host;
  try {
    (void)make_plan(model, layout, request);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr("--zero_stage 3"));
  }
}

TEST_F(ShardedPlanTest, a_sharded_step_is_predicted_with_its_collectives) {
  const model::Model model = make_model(model::awkward_llama(true));
  const shard::Layout layout(shard::shape_of(model), 2);
  HardwareProfile profile;
  profile.bf16_flops_per_second = 1e12;
  profile.device_bytes_per_second = 1e12;
  profile.d2h_bytes_per_second = 1e12;
  profile.optimizer_bytes_per_second = 1e12;
  profile.collective_bytes_per_second = 1e3;  // by far the slowest
  const Plan plan = make_plan(model, layout, request(3));
  const Prediction prediction = simulate(plan.training, profile);
  EXPECT_EQ(prediction.busiest(), Lane::collective);
  const double least = static_cast<double>(bytes_on(plan, Lane::collective)) / 1e3;
  EXPECT_GE(prediction.step_seconds, least * 0.999);
  EXPECT_LE(prediction.step_seconds, least * 1.1);
}

/// `layers` of 12 h^2 parameters and an embedding: of so many parameters as the papers speak of.
model::Config sized(std::int64_t hidden, std::int64_t layers, std::int64_t vocabulary) {
  model::Config config;
  config.architecture = model::Architecture::gpt2;
  config.vocab_size = vocabulary;
  config.hidden_size = hidden;
  config.intermediate_size = 4 * hidden;
  config.num_hidden_layers = layers;
  config.num_attention_heads = hidden / 128;
  config.num_key_value_heads = hidden / 128;
  config.head_dim = 128;
  config.max_position_embeddings = 1024;
  config.tie_word_embeddings = true;
  return config;
}

/// Gigabytes (10^9) of all state that a rank keeps.
double kept_gb(const model::Model& model, int ranks, const PlanRequest& request) {
  const shard::Layout layout(shard::shape_of(model), ranks);
  const Plan plan = make_plan(model, layout, request);
  std::uint64_t bytes = 0;
  for (const StateKind kind : kKinds) bytes += plan.kept_bytes(kind);
  return static_cast<double>(bytes) * 1e-9;
}

// Rajbhandari et al., ZeRO, 2019, figure 1: 7.5B parameters, 64 ranks, 16 bytes a parameter. The
// model's parameters and the flats' padding differ from the round figures by less than 0.2 %.
TEST_F(ShardedPlanTest, seven_and_a_half_billion_parameters_on_64_ranks_are_as_published) {
  const model::Model model = make_model(sized(4096, 37, 11000));
  ASSERT_NEAR(static_cast<double>(model.parameter_count()), 7.5e9, 0.01e9);
  EXPECT_NEAR(kept_gb(model, 1, request(0)), 120, 0.24);
  EXPECT_NEAR(kept_gb(model, 64, request(0)), 120, 0.24);
  EXPECT_NEAR(kept_gb(model, 64, request(1)), 31.4, 0.1);
  EXPECT_NEAR(kept_gb(model, 64, request(2)), 16.6, 0.05);
  EXPECT_NEAR(kept_gb(model, 64, request(3)), 1.9, 0.05);
}

// The same arithmetic for the sizes that people ask about: 16 bytes a parameter over all ranks.
TEST_F(ShardedPlanTest, seven_billion_on_8_ranks_and_seventy_on_64_are_as_published) {
  const model::Model seven = make_model(sized(4096, 34, 35000));
  ASSERT_NEAR(static_cast<double>(seven.parameter_count()), 7e9, 0.01e9);
  EXPECT_NEAR(kept_gb(seven, 1, request(0)), 112, 0.2);
  EXPECT_NEAR(kept_gb(seven, 8, request(3)), 14, 0.03);
  const model::Model seventy = make_model(sized(8192, 86, 88000));
  ASSERT_NEAR(static_cast<double>(seventy.parameter_count()), 70e9, 0.1e9);
  EXPECT_NEAR(kept_gb(seventy, 64, request(3)), 17.5, 0.03);
}

// 70B on one GPU of 500 TFLOP/s, four Gen5 drives, 8,192 tokens a step, by hand: 8 FLOP a parameter
// and token take 9.2 s, 12 bytes a parameter read at 27 GB/s and written at 11 GB/s, the drives
// doing one or the other, 107 s. Updates wait for the norm, so that forward alone can hide them,
// and its quarter of 9.2 s hides little.
TEST_F(ShardedPlanTest, seventy_billion_with_state_on_drives_take_what_the_drives_need) {
  const model::Model model = make_model(sized(8192, 86, 88000));
  const shard::Layout layout(shard::shape_of(model), 1);
  PlanRequest request = ShardedPlanTest::request(0);
  request.micro_batch = {8, 1024};
  request.placement = {Tier::host, Tier::disk, Tier::host, 0};
  HardwareProfile profile;
  profile.bf16_flops_per_second = 500e12;
  profile.device_bytes_per_second = 1.6e12;
  profile.h2d_bytes_per_second = profile.d2h_bytes_per_second = 55e9;
  profile.optimizer_bytes_per_second = 300e9;
  profile.disk_read_bytes_per_second = 27e9;
  profile.disk_write_bytes_per_second = 11e9;
  const Prediction prediction = simulate(make_plan(model, layout, request).training, profile);
  const double compute = 8 * 70e9 * 8192 / 500e12;
  const double drives = 12 * 70e9 * (1 / 27e9 + 1 / 11e9);
  EXPECT_NEAR(prediction.of(Lane::compute).busy_seconds, compute, 0.1 * compute);
  EXPECT_GT(prediction.step_seconds, drives * 0.99);
  EXPECT_LT(prediction.step_seconds, (drives + compute) * 1.01);
}

TEST_F(ShardedPlanTest, what_is_kept_does_not_depend_on_the_tier) {
  const model::Model model = make_model(model::awkward_llama(true));
  const shard::Layout layout(shard::shape_of(model), 2);
  PlanRequest request = ShardedPlanTest::request(3);
  const Plan on_device = make_plan(model, layout, request);
  request.placement = {Tier::disk, Tier::disk, Tier::host, 0};
  const Plan on_disk = make_plan(model, layout, request);
  const auto elements = static_cast<std::uint64_t>(layout.elements());
  for (const Plan* plan : {&on_device, &on_disk}) {
    EXPECT_EQ(plan->kept_bytes(StateKind::parameter), elements * 2 / 2);
    EXPECT_EQ(plan->kept_bytes(StateKind::gradient), elements * 2 / 2);
    EXPECT_EQ(plan->kept_bytes(StateKind::master), elements * 4 / 2);
    EXPECT_EQ(plan->kept_bytes(StateKind::exp_avg_sq), elements * 4 / 2);
  }
}

}  // namespace
}  // namespace terrace::plan
