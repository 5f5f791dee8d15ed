#include "terrace/config/planning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/sanitized.h"
#include "terrace/config/profile.h"
#include "terrace/core/units.h"
#include "terrace/kernels/cpu.h"
#include "terrace/plan/need.h"
#include "terrace/plan/simulate.h"
#include "terrace/runtime/step.h"
#include "train/training.h"

// Automatic placement: device, then host, then disk, by fraction.

namespace terrace::config::testing {
namespace {
using train::testing::small_llama;

using memory::Tier;
using ::testing::HasSubstr;

class PlanningTest : public ::testing::Test {
 protected:
  PlanningTest()
      : ops_(kernels::make_cpu_ops({})),
        model_(small_llama(false), DType::bf16, *ops_),
        layout_(shard::shape_of(model_), 1) {
    settings_.data.max_length = 16;
    settings_.batch.micro = 2;
    settings_.placement.chunk_elements = 2048;
    settings_.placement.swap = {"/a folder of another machine"};
  }

  [[nodiscard]] ChosenPlan choose(std::uint64_t host_bytes, const PlanBasis& basis = {}) {
    settings_.placement.host_memory = Budget{.bytes = host_bytes};
    return choose_plan(settings_, model_, layout_, basis);
  }
  /// What the run takes with everything in RAM.
  [[nodiscard]] std::uint64_t whole() { return choose(kGiB).process_bytes; }
  /// What it takes with everything on disk.
  [[nodiscard]] std::uint64_t floor() {
    Settings pinned = settings_;
    pinned.placement.parameters.device = Placement::nvme;
    pinned.placement.optimizer.device = Placement::nvme;
    pinned.placement.optimizer.buffer_count = 4;  // what a plan does with at least
    pinned.placement.host_memory = Budget{.bytes = kGiB};
    return choose_plan(pinned, model_, layout_).process_bytes;
  }
  [[nodiscard]] static double step_seconds(const plan::Plan& plan) {
    return plan::simulate(plan.training, with_assumed({}),
                          {.steps_in_flight = plan::kStepsInFlight})
        .step_seconds;
  }
  /// Bytes of the parameters on a tier.
  [[nodiscard]] static std::uint64_t parameters_on(const plan::Plan& plan, Tier tier) {
    std::uint64_t bytes = 0;
    for (const plan::Chunk& chunk : plan.chunks) {
      if (plan.parameter_tier[static_cast<std::size_t>(chunk.flat)] != tier) continue;
      bytes += static_cast<std::uint64_t>(chunk.range.count) * 2;
    }
    return bytes;
  }
  /// Bytes of the state of the chunks on a tier.
  [[nodiscard]] static std::uint64_t state_on(const plan::Plan& plan, Tier tier) {
    std::uint64_t bytes = 0;
    for (const plan::Chunk& chunk : plan.chunks) {
      if (chunk.tier == tier) bytes += static_cast<std::uint64_t>(chunk.range.count) * 12;
    }
    return bytes;
  }

  std::unique_ptr<kernels::Ops> ops_;
  model::Model model_;
  shard::Layout layout_;
  Settings settings_;
};

TEST_F(PlanningTest, the_rows_of_the_memory_table_add_up_to_what_is_claimed) {
  const auto sum = [](const ChosenPlan& chosen, bool with_device) {
    std::uint64_t bytes = 0;
    for (const memory::PurposeBytes& row : chosen.plan.memory.by_purpose()) {
      if (row.tier == Tier::host || (row.tier == Tier::device && with_device)) bytes += row.bytes;
    }
    for (const plan::ProcessBytes& row : plan::process_rows(chosen.plan)) {
      EXPECT_GT(row.bytes, 0U) << row.purpose;
      EXPECT_THAT(memory_table(chosen.plan), HasSubstr(row.purpose));
      bytes += row.bytes;
    }
    return bytes;
  };
  const ChosenPlan in_ram = choose(kGiB);
  EXPECT_EQ(sum(in_ram, true), in_ram.process_bytes);
  EXPECT_THAT(memory_table(in_ram.plan), HasSubstr(format_bytes(in_ram.process_bytes)));
  const ChosenPlan beside = choose(kGiB, {.device_is_ram = false});
  EXPECT_EQ(sum(beside, false), beside.process_bytes);
  EXPECT_EQ(choose(kGiB, {.threads = 65}).process_bytes, in_ram.process_bytes + 64 * kMiB);
  settings_.output.trace = "trace.json";
  const ChosenPlan traced = choose(kGiB);
  EXPECT_EQ(sum(traced, true), traced.process_bytes);
  EXPECT_GT(traced.process_bytes, in_ram.process_bytes);
}

// The tasks of a step are kept in RAM as well: 118 MiB were seen with 4096 micro-batches of `tiny`.
TEST_F(PlanningTest, many_micro_batches_are_in_what_is_claimed) {
  const auto process_bytes = [&](std::int64_t micro_batches) {
    settings_.batch.accumulation = micro_batches;
    const ChosenPlan chosen = choose(kGiB);
    return chosen.process_bytes - chosen.plan.memory.bytes(Tier::device) -
           chosen.plan.memory.bytes(Tier::host);
  };
  EXPECT_LT(process_bytes(1), 64 * kMiB);
  EXPECT_GT(process_bytes(4096), 80 * kMiB);
}

TEST_F(PlanningTest, memory_of_the_devices_own_is_not_in_the_budget_of_ram) {
  const ChosenPlan in_ram = choose(kGiB);
  const std::uint64_t device = in_ram.plan.memory.bytes(Tier::device);
  const PlanBasis gpu{.device_is_ram = false};
  settings_.placement.device_memory = Budget{.bytes = device};
  const ChosenPlan whole = choose(kGiB, gpu);
  EXPECT_EQ(whole.plan.memory.bytes(Tier::device), device);
  EXPECT_EQ(whole.process_bytes, in_ram.process_bytes - device);
  // With RAM for what the device does not hold, and for no more, nothing goes to disk.
  const std::uint64_t less = device - state_on(in_ram.plan, Tier::device) / 2;
  settings_.placement.device_memory = Budget{.bytes = less};
  const std::uint64_t beside = choose(kGiB, gpu).process_bytes;
  const ChosenPlan part = choose(beside, gpu);
  EXPECT_EQ(state_on(part.plan, Tier::disk) + parameters_on(part.plan, Tier::disk), 0U);
  EXPECT_GT(state_on(part.plan, Tier::device), 0U);
  EXPECT_LE(part.plan.memory.bytes(Tier::device), less);
  EXPECT_LE(part.process_bytes, beside);
}

TEST_F(PlanningTest, what_a_device_holds_only_with_more_ram_is_refused_for_the_ram) {
  settings_.placement.swap.clear();
  const plan::Plan all = choose(kGiB).plan;
  const std::uint64_t state = state_on(all, Tier::device);
  settings_.placement.device_memory = Budget{.bytes = all.memory.bytes(Tier::device) - state};
  const PlanBasis gpu{.device_is_ram = false};
  const std::uint64_t need = choose(kGiB, gpu).process_bytes;
  try {
    (void)choose(need - kMiB / 2, gpu);
    FAIL() << "less RAM than the plan needs was accepted";
  } catch (const Error& error) {
    const std::string sentence = error.what();
    EXPECT_THAT(sentence, ::testing::StartsWith("the run needs "));
    EXPECT_THAT(sentence, HasSubstr("master and moments on host RAM"));
    EXPECT_THAT(sentence, HasSubstr("--swap DIR with a folder on an NVMe drive takes "));
  }
}

TEST_F(PlanningTest, a_larger_budget_never_moves_anything_to_a_slower_tier) {
  constexpr std::uint64_t kChunkBytes = 2048 * 12;
  for (const double clip : {1.0, 0.0}) {
    settings_.optimizer.max_grad_norm = clip;
    const std::uint64_t first = floor();
    const std::uint64_t last = whole();
    std::uint64_t parameters = ~std::uint64_t{0};
    std::uint64_t on_disk = ~std::uint64_t{0};
    int parts = 0;
    int parameter_parts = 0;
    for (std::uint64_t budget = first; budget < last + kChunkBytes; budget += 4 * kKiB) {
      const ChosenPlan chosen = choose(budget);
      SCOPED_TRACE(chosen.placement + ", " + std::to_string(budget));
      ASSERT_LE(chosen.process_bytes, budget);
      const std::uint64_t now = parameters_on(chosen.plan, Tier::disk);
      ASSERT_LE(now, parameters);
      if (now != parameters) on_disk = ~std::uint64_t{0};
      parameters = now;
      if (now > 0) {
        parameter_parts += parameters_on(chosen.plan, Tier::device) > 0 ? 1 : 0;
        ASSERT_TRUE(chosen.plan.commits_every_step);
      }
      const std::uint64_t state = state_on(chosen.plan, Tier::disk);
      ASSERT_LE(state, on_disk);
      on_disk = state;
      if (state == 0 || state_on(chosen.plan, Tier::host) == 0) continue;
      ++parts;
      EXPECT_GT(chosen.process_bytes + kChunkBytes, budget) << "another chunk would have fitted";
    }
    EXPECT_EQ(parameters, 0U);
    EXPECT_GT(parameter_parts, 2);
    EXPECT_EQ(on_disk, 0U) << "at the end all is in RAM";
    EXPECT_GT(parts, 5);
  }
}

TEST_F(PlanningTest, a_bounded_device_is_filled_before_the_host) {
  settings_.placement.swap.clear();
  const plan::Plan all = choose(kGiB).plan;
  const std::uint64_t state = state_on(all, Tier::device);
  EXPECT_EQ(state, static_cast<std::uint64_t>(layout_.elements()) * 12);
  settings_.placement.device_memory = Budget{.bytes = all.memory.bytes(Tier::device) - state / 2};
  const ChosenPlan half = choose(kGiB);
  EXPECT_EQ(half.plan.request.placement.parameters, Tier::device);
  EXPECT_GT(state_on(half.plan, Tier::device), state / 4);
  // Less than half: the gradients have left the device too.
  EXPECT_GT(state_on(half.plan, Tier::host), state / 8);
  EXPECT_EQ(state_on(half.plan, Tier::disk), 0U);
  EXPECT_THAT(half.placement, HasSubstr("of them on device"));
}

TEST_F(PlanningTest, a_bounded_device_gives_away_state_then_boundaries_or_parameters) {
  settings_.placement.swap.clear();
  settings_.batch.accumulation = 4;
  settings_.batch.order = MicroBatchOrder::unit_major;
  const std::uint64_t all = choose(kGiB).plan.memory.bytes(Tier::device);
  int parts = 0;
  int whole = 0;
  double seconds = 0;
  Tier parameters = Tier::device;
  const std::uint64_t step = kSanitized ? 8 * kKiB : 2 * kKiB;
  for (std::uint64_t budget = all; budget > 0; budget -= std::min(budget, step)) {
    settings_.placement.device_memory = Budget{.bytes = budget};
    ChosenPlan chosen;
    try {
      chosen = choose(kGiB);
    } catch (const Error&) {
      break;
    }
    SCOPED_TRACE(chosen.placement + ", " + std::to_string(budget));
    const plan::Placement& placement = chosen.plan.request.placement;
    ASSERT_LE(chosen.plan.memory.bytes(Tier::device), budget);
    parameters = placement.parameters;
    const double now = step_seconds(chosen.plan);
    ASSERT_GE(now, 0.99 * seconds) << "a larger budget makes no slower plan";
    seconds = std::max(seconds, now);
    const std::size_t leave = chosen.plan.boundary_home.size();
    if (leave == 0) continue;
    EXPECT_EQ(placement.state, Tier::host);
    EXPECT_THAT(chosen.placement, HasSubstr("inputs of blocks on host RAM"));
    (leave < 4 ? parts : whole) += 1;
  }
  EXPECT_GT(parts, 0) << "whole boundaries leave one after the other";
  EXPECT_GT(whole, 0);
  EXPECT_EQ(parameters, Tier::host);
}

TEST_F(PlanningTest, boundaries_that_are_pinned_stay_where_they_are) {
  settings_.placement.activations.device = Placement::cpu;
  settings_.placement.activations.ratio = 0.5;
  const ChosenPlan half = choose(kGiB);
  EXPECT_EQ(half.plan.boundary_home.size(), 1U);
  EXPECT_THAT(half.placement, HasSubstr("inputs of blocks on host RAM (50 % of them on device)"));
  settings_.placement.activations.device = Placement::nvme;
  const ChosenPlan on_disk = choose(kGiB);
  EXPECT_EQ(on_disk.plan.request.placement.boundaries, Tier::disk);
  EXPECT_THAT(on_disk.placement, HasSubstr("inputs of blocks on disk (50 % of them on device)"));
  EXPECT_GT(on_disk.store_bytes, on_disk.plan.memory.bytes(Tier::disk));
  settings_.placement.activations.device = Placement::none;
  settings_.placement.device_memory = Budget{.bytes = kGiB};
  EXPECT_EQ(choose(kGiB).plan.boundary_home.size(), 0U);
}

TEST_F(PlanningTest, boundaries_go_to_disk_only_where_not_all_fits_in_ram) {
  // So that boundaries take more than the tasks that move them.
  settings_.batch.accumulation = 512;
  settings_.batch.micro = 1;
  settings_.data.max_length = 64;
  settings_.batch.order = MicroBatchOrder::unit_major;
  settings_.placement.activations.device = Placement::none;
  const std::uint64_t without = floor();
  try {
    (void)choose(without - 4 * kKiB);
    FAIL() << "a budget below the floor was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--offload_activations auto takes "));
  }
  settings_.placement.activations.device = Placement::automatic;
  EXPECT_NO_THROW((void)choose(without));
  settings_.batch.accumulation = 64;
  settings_.batch.micro = 16;
  settings_.placement.parameters.device = Placement::none;
  settings_.placement.optimizer.device = Placement::none;
  const std::uint64_t all = whole();
  settings_.placement.activations.device = Placement::nvme;
  const std::uint64_t least = whole();
  ASSERT_GT(all, least);
  settings_.placement.activations.device = Placement::automatic;
  for (const bool bounded : {false, true}) {
    if (bounded) settings_.placement.device_memory = Budget{.bytes = kGiB};
    EXPECT_EQ(choose(all).plan.boundary_home.size(), 0U);
    const ChosenPlan some = choose(least + 64 * kKiB);
    EXPECT_EQ(some.plan.request.placement.boundaries, Tier::disk);
    EXPECT_THAT(some.placement, HasSubstr("inputs of blocks on disk ("));
    const ChosenPlan none = choose(least);
    EXPECT_GT(none.plan.boundary_home.size(), some.plan.boundary_home.size());
    EXPECT_GT(none.store_bytes, some.store_bytes);
    EXPECT_THROW((void)choose(least - 4 * kKiB), Error);
  }
}

TEST_F(PlanningTest, below_the_floor_the_two_changes_that_help_most_are_named_with_their_need) {
  const std::uint64_t least = floor();
  try {
    (void)choose(least - kMiB);
    FAIL() << "a budget below the floor was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
    EXPECT_THAT(error.what(), HasSubstr(format_bytes(least)));
    EXPECT_THAT(error.what(), HasSubstr("--max_grad_norm 0 takes "));
  }
}

TEST_F(PlanningTest, without_a_drive_a_drive_is_one_of_the_two_changes) {
  const std::uint64_t least = floor();
  settings_.placement.swap.clear();
  const std::uint64_t need = whole();
  try {
    (void)choose(need - kMiB);
    FAIL() << "a budget below the need was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
    EXPECT_THAT(error.what(), HasSubstr("needs " + format_bytes(need)));
    EXPECT_THAT(error.what(), HasSubstr("--swap DIR with a folder on an NVMe drive takes " +
                                        format_bytes(least)));
    EXPECT_THAT(error.what(),
                ::testing::AnyOf(HasSubstr("--max_length 8 takes "),
                                 HasSubstr("--per_device_train_batch_size 1 takes ")));
  }
}

TEST_F(PlanningTest, a_device_below_its_floor_is_refused_with_what_would_help_it) {
  settings_.placement.device_memory = Budget{.bytes = 64 * kKiB};
  try {
    (void)choose(kGiB);
    FAIL() << "a budget below the floor was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
    EXPECT_THAT(error.what(), HasSubstr("the device tier needs "));
    EXPECT_THAT(error.what(), HasSubstr("--max_length 8 takes "));
    EXPECT_THAT(error.what(), HasSubstr("--per_device_train_batch_size 1 takes "));
  }
}

TEST_F(PlanningTest, ram_that_is_left_holds_more_chunks_in_flight) {
  const std::uint64_t least = floor();
  settings_.placement.parameters.device = Placement::nvme;
  settings_.placement.optimizer.device = Placement::nvme;
  const auto slots = [&](std::uint64_t budget) { return choose(budget).plan.request.chunk_slots; };
  EXPECT_EQ(slots(least), 4);
  EXPECT_EQ(slots(kGiB), 8);
  settings_.placement.optimizer.buffer_count = 3;
  EXPECT_EQ(slots(kGiB), 3) << "as asked for";
}

TEST_F(PlanningTest, slots_that_are_asked_for_and_do_not_fit_are_refused) {
  settings_.batch.micro = 1;
  settings_.optimizer.max_grad_norm = 0;
  const std::uint64_t least = floor();
  settings_.placement.parameters.device = Placement::nvme;
  settings_.placement.optimizer.device = Placement::nvme;
  settings_.placement.optimizer.buffer_count = 6;
  try {
    (void)choose(least);
    FAIL() << "six slots were planned where four fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
    EXPECT_THAT(error.what(), HasSubstr("buffer_count=4 takes "));
  }
}

TEST_F(PlanningTest, what_is_pinned_and_what_a_store_holds_is_not_split) {
  const std::uint64_t budget = (floor() + whole()) / 2;
  EXPECT_GT(state_on(choose(budget).plan, Tier::host), 0U);
  EXPECT_EQ(state_on(choose(budget, {.store_parameter_bytes = 0}).plan, Tier::host), 0U);
  settings_.placement.optimizer.device = Placement::nvme;
  EXPECT_EQ(state_on(choose(budget).plan, Tier::host), 0U);
}

TEST_F(PlanningTest, what_a_store_still_needs_on_disk_is_held_against_what_the_flag_leaves_it) {
  settings_.placement.optimizer.device = Placement::nvme;
  const PlanBasis basis{.store_parameter_bytes = 0};
  const std::uint64_t held = choose(kGiB, basis).store_bytes;
  settings_.placement.disk = Budget{.bytes = held / 2};
  EXPECT_NO_THROW((void)choose(kGiB, basis)) << "it is there, and is given nothing";
  settings_.placement.activations.device = Placement::nvme;
  settings_.placement.disk.reset();
  const std::uint64_t all = choose(kGiB, basis).store_bytes;
  ASSERT_GT(all, held);
  settings_.placement.disk = Budget{.bytes = all};
  EXPECT_NO_THROW((void)choose(kGiB, basis));
  settings_.placement.disk = Budget{.bytes = all - 1};
  try {
    (void)choose(kGiB, basis);
    FAIL() << "scratch was planned where --disk has no room for it";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
    EXPECT_THAT(error.what(), HasSubstr("the inputs of blocks need " + format_bytes(all - held)));
    EXPECT_THAT(error.what(), HasSubstr("and the store has " + format_bytes(held)));
  }
}

TEST_F(PlanningTest, what_a_store_holds_decides_where_the_parameters_are) {
  const std::uint64_t all = static_cast<std::uint64_t>(layout_.elements()) * 2;
  std::uint64_t budget = floor();
  while (parameters_on(choose(budget).plan, Tier::disk) == all) budget += 4 * kKiB;
  const plan::Plan split = choose(budget).plan;
  const std::uint64_t part = parameters_on(split, Tier::disk);
  ASSERT_GT(part, 0U);
  for (const std::uint64_t held : {std::uint64_t{0}, part, all}) {
    const plan::Plan found = choose(kGiB, {.store_parameter_bytes = held}).plan;
    EXPECT_EQ(found.request.placement.state, Tier::disk);
    EXPECT_EQ(parameters_on(found, Tier::disk), held);
    if (held == part) {
      EXPECT_EQ(found.parameter_tier, split.parameter_tier);
    }
  }
}

TEST_F(PlanningTest, with_its_store_a_run_gets_the_plan_that_it_had) {
  settings_.placement.optimizer.device = Placement::nvme;
  settings_.batch.accumulation = 4;
  const std::uint64_t all = choose(kGiB).plan.memory.bytes(Tier::device);
  int on_host = 0;
  for (std::uint64_t budget = all; budget > all / 2; budget -= 16 * kKiB) {
    settings_.placement.device_memory = Budget{.bytes = budget};
    plan::Plan made;
    try {
      made = choose(kGiB).plan;
    } catch (const Error&) {
      break;
    }
    const std::uint64_t held = parameters_on(made, Tier::disk);
    const plan::Plan found = choose(kGiB, {.store_parameter_bytes = held}).plan;
    EXPECT_EQ(found.request.placement, made.request.placement) << budget;
    on_host += made.request.placement.parameters == Tier::host ? 1 : 0;
  }
  EXPECT_GT(on_host, 0);
}

TEST_F(PlanningTest, a_share_of_the_parameters_is_offloaded_as_asked) {
  settings_.placement.parameters.ratio = 0.25;
  settings_.placement.parameters.device = Placement::nvme;
  const std::uint64_t quarter = static_cast<std::uint64_t>(layout_.elements()) * 2 / 4;
  ChosenPlan chosen = choose(kGiB);
  EXPECT_GE(parameters_on(chosen.plan, Tier::disk), quarter);
  EXPECT_LT(parameters_on(chosen.plan, Tier::disk), 2 * quarter);
  EXPECT_EQ(parameters_on(chosen.plan, Tier::host), 0U);
  EXPECT_THAT(chosen.placement, HasSubstr("parameters on disk ("));
  EXPECT_THAT(chosen.placement, HasSubstr(" % of them on device)"));
  settings_.placement.device_memory = Budget{.bytes = kGiB};
  chosen = choose(kGiB);
  EXPECT_GT(parameters_on(chosen.plan, Tier::host), 2 * quarter) << "a device that is bounded";
  settings_.placement.parameters.device = Placement::cpu;
  chosen = choose(kGiB);
  EXPECT_GT(parameters_on(chosen.plan, Tier::device), 2 * quarter);
  EXPECT_GE(parameters_on(chosen.plan, Tier::host), quarter);
}

TEST_F(PlanningTest, a_device_that_does_not_hold_the_parameters_holds_a_part_of_them) {
  settings_.placement.swap.clear();
  settings_.placement.optimizer.device = Placement::cpu;
  settings_.placement.activations.device = Placement::none;  // which else would leave first
  const plan::Plan whole = choose(kGiB).plan;
  const std::uint64_t all = parameters_on(whole, Tier::device);
  ASSERT_EQ(all, static_cast<std::uint64_t>(layout_.elements()) * 2);
  settings_.placement.device_memory = Budget{.bytes = whole.memory.bytes(Tier::device) - 4 * kKiB};
  const plan::Plan most = choose(kGiB).plan;
  EXPECT_GT(parameters_on(most, Tier::host), 0U);
  EXPECT_GT(parameters_on(most, Tier::device), 0U);
}

TEST_F(PlanningTest, what_is_more_than_the_disk_gives_does_not_fit) {
  const std::uint64_t budget = (floor() + whole()) / 2;
  const std::uint64_t bytes = choose(budget).plan.memory.bytes(Tier::disk);
  ASSERT_GT(bytes, 0U);
  settings_.placement.disk = Budget{.bytes = bytes * 2};
  EXPECT_GT(state_on(choose(budget).plan, Tier::disk), 0U);
  settings_.placement.disk = Budget{.bytes = bytes / 2};
  try {
    (void)choose(budget);
    FAIL() << "more was planned than --disk allows";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
    EXPECT_THAT(error.what(), HasSubstr("--disk allows"));
  }
}

}  // namespace
}  // namespace terrace::config::testing
