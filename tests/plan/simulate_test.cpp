#include "terrace/plan/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>

#include "terrace/core/error.h"

// The clock's unit is the second; rates are 1 a second, so that a task of 3 bytes takes 3 seconds.

namespace terrace::plan {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::HasSubstr;

HardwareProfile unit_profile() {
  HardwareProfile profile;
  profile.name = "unit";
  profile.h2d_bytes_per_second = 1;
  profile.d2h_bytes_per_second = 1;
  profile.device_bytes_per_second = 1;
  profile.collective_bytes_per_second = 1;
  profile.disk_read_bytes_per_second = 1;
  profile.disk_write_bytes_per_second = 1;
  profile.disk_mixed_factor = 1;
  profile.optimizer_bytes_per_second = 1;
  profile.bf16_flops_per_second = 1;
  return profile;
}

struct Draft {
  Schedule schedule;

  int task(Lane lane, std::uint64_t seconds, std::vector<Wait> waits = {}) {
    Task task;
    task.kind = TaskKind::update;
    task.lane = lane;
    if (lane == Lane::compute) {
      task.flops = static_cast<double>(seconds);
    } else {
      task.bytes = seconds;
    }
    task.first_wait = static_cast<int>(schedule.waits.size());
    task.wait_count = static_cast<int>(waits.size());
    schedule.waits.insert(schedule.waits.end(), waits.begin(), waits.end());
    schedule.tasks.push_back(task);
    return static_cast<int>(schedule.tasks.size()) - 1;
  }
};

double waited(const Prediction& prediction, Lane lane) { return prediction.waited_seconds[lane]; }

TEST(Simulate, each_lane_in_turn_bounds_a_step_of_independent_lanes) {
  for (int lane = 0; lane < kLanes; ++lane) {
    Draft draft;
    for (int other = 0; other < kLanes; ++other) {
      draft.task(static_cast<Lane>(other), other == lane ? 10 : 4);
      draft.task(static_cast<Lane>(other), 3);
    }
    const Prediction prediction = simulate(draft.schedule, unit_profile());
    SCOPED_TRACE(name_of(static_cast<Lane>(lane)));
    EXPECT_DOUBLE_EQ(prediction.step_seconds, 13);
    EXPECT_EQ(prediction.busiest(), static_cast<Lane>(lane));
    for (int other = 0; other < kLanes; ++other) {
      EXPECT_DOUBLE_EQ(prediction.of(static_cast<Lane>(other)).busy_seconds,
                       other == lane ? 13 : 7);
    }
  }
}

TEST(Simulate, a_chain_of_lanes_takes_the_sum_when_its_end_holds_back_the_next_step) {
  Draft draft;
  const int fetch = draft.task(Lane::h2d, 2, {{3, 1}});
  const int compute = draft.task(Lane::compute, 5, {{fetch, 0}});
  const int store = draft.task(Lane::d2h, 3, {{compute, 0}});
  draft.task(Lane::optimizer, 7, {{store, 0}});
  const Prediction prediction = simulate(draft.schedule, unit_profile());
  EXPECT_DOUBLE_EQ(prediction.step_seconds, 17);
  EXPECT_DOUBLE_EQ(waited(prediction, Lane::h2d), 12) << "the fetch was last to let it go";
  EXPECT_DOUBLE_EQ(waited(prediction, Lane::optimizer), 0);
  EXPECT_EQ(prediction.busiest(), Lane::optimizer);
}

TEST(Simulate, without_that_wait_the_same_chain_overlaps_with_the_next_step) {
  Draft draft;
  const int fetch = draft.task(Lane::h2d, 2);
  const int compute = draft.task(Lane::compute, 5, {{fetch, 0}});
  const int store = draft.task(Lane::d2h, 3, {{compute, 0}});
  draft.task(Lane::optimizer, 7, {{store, 0}});
  SimulateOptions options;
  // A step is 17 seconds long; with enough of them under way the busiest lane alone counts.
  options.steps_in_flight = 4;
  EXPECT_DOUBLE_EQ(simulate(draft.schedule, unit_profile(), options).step_seconds, 7);
  // Two at a time: step n + 2 begins when n has ended.
  options.steps_in_flight = 2;
  EXPECT_DOUBLE_EQ(simulate(draft.schedule, unit_profile(), options).step_seconds, 8.5);
  options.steps_in_flight = 1;
  EXPECT_DOUBLE_EQ(simulate(draft.schedule, unit_profile(), options).step_seconds, 17);
}

TEST(Simulate, a_unit_of_the_next_step_waits_for_its_own_chunk_only) {
  // Two units: forward 0, forward 1, backward; then their updates in forward order. Forward 0 of
  // the next step needs update 0, forward 1 update 1.
  Draft draft;
  draft.task(Lane::compute, 2, {{3, 1}});
  draft.task(Lane::compute, 2, {{4, 1}});
  const int backward = draft.task(Lane::compute, 6);
  draft.task(Lane::optimizer, 1, {{backward, 0}});
  draft.task(Lane::optimizer, 2);
  const Prediction prediction = simulate(draft.schedule, unit_profile());
  // Update 0 is exposed, update 1 runs under forward 0.
  EXPECT_DOUBLE_EQ(prediction.step_seconds, 11);
  EXPECT_DOUBLE_EQ(waited(prediction, Lane::optimizer), 1);
}

TEST(Simulate, slots_bound_how_far_reads_run_ahead) {
  // Four chunks through one slot: read, update, write, and the slot is free again.
  Draft one_slot;
  Draft two_slots;
  for (const auto& [draft, slots] : {std::pair(&one_slot, 1), std::pair(&two_slots, 2)}) {
    for (int chunk = 0; chunk < 4; ++chunk) {
      const int write = 3 * (chunk - slots) + 2;
      const int read =
          draft->task(Lane::disk_read, 2, {write >= 0 ? Wait{write, 0} : Wait{write + 3 * 4, 1}});
      const int update = draft->task(Lane::optimizer, 1, {{read, 0}});
      draft->task(Lane::disk_write, 2, {{update, 0}});
    }
  }
  EXPECT_DOUBLE_EQ(simulate(one_slot.schedule, unit_profile()).step_seconds, 20);
  EXPECT_DOUBLE_EQ(simulate(two_slots.schedule, unit_profile()).step_seconds, 10);
}

TEST(Simulate, reading_and_writing_share_a_drive_by_the_mixed_factor) {
  Draft draft;
  draft.task(Lane::disk_read, 4);
  draft.task(Lane::disk_write, 4);
  HardwareProfile profile = unit_profile();
  EXPECT_DOUBLE_EQ(simulate(draft.schedule, profile).step_seconds, 4);
  profile.disk_mixed_factor = 0.5;
  EXPECT_DOUBLE_EQ(simulate(draft.schedule, profile).step_seconds, 8);
  profile.disk_mixed_factor = 0.8;
  EXPECT_DOUBLE_EQ(simulate(draft.schedule, profile).step_seconds, 5);
  // One step at a time, and reading alone for the last second: 2 at half rate, then 2 alone.
  Draft uneven;
  uneven.task(Lane::disk_read, 3);
  uneven.task(Lane::disk_write, 1);
  profile.disk_mixed_factor = 0.5;
  const Prediction prediction = simulate(uneven.schedule, profile, {.steps_in_flight = 1});
  EXPECT_DOUBLE_EQ(prediction.step_seconds, 4);
  EXPECT_DOUBLE_EQ(prediction.of(Lane::disk_write).busy_seconds, 2);
}

TEST(Simulate, compute_and_optimizer_slow_each_other_on_shared_cores) {
  Draft draft;
  draft.task(Lane::compute, 3);
  draft.task(Lane::optimizer, 3);
  HardwareProfile profile = unit_profile();
  profile.shared_cores_factor = 0.5;
  EXPECT_DOUBLE_EQ(simulate(draft.schedule, profile).step_seconds, 6);
}

TEST(Simulate, a_task_costs_its_overhead_and_a_commit_its_flush) {
  Draft draft;
  for (int i = 0; i < 4; ++i) draft.task(Lane::compute, 1);
  draft.task(Lane::disk_write, 2);
  const int commit = draft.task(Lane::disk_write, 0, {{4, 0}});
  draft.schedule.tasks[static_cast<std::size_t>(commit)].kind = TaskKind::commit;
  HardwareProfile profile = unit_profile();
  profile.task_seconds = 0.25;
  profile.commit_seconds = 4;
  const Prediction prediction = simulate(draft.schedule, profile);
  EXPECT_DOUBLE_EQ(prediction.of(Lane::compute).busy_seconds, 5);
  EXPECT_DOUBLE_EQ(prediction.of(Lane::disk_write).busy_seconds, 6);
  EXPECT_DOUBLE_EQ(prediction.step_seconds, 6);
}

TEST(Simulate, counts_the_bytes_of_each_lane) {
  Draft draft;
  draft.task(Lane::h2d, 2);
  draft.task(Lane::h2d, 5);
  draft.task(Lane::d2h, 1);
  const Prediction prediction = simulate(draft.schedule, unit_profile());
  EXPECT_EQ(prediction.of(Lane::h2d).bytes, 7U);
  EXPECT_EQ(prediction.of(Lane::d2h).bytes, 1U);
  EXPECT_EQ(prediction.of(Lane::disk_read).bytes, 0U);
}

/// Tasks of whole seconds on random lanes with waits for earlier ones and for the step before.
Schedule random_schedule(std::mt19937& random) {
  Draft draft;
  const int tasks = 2 + static_cast<int>(random() % 30);
  for (int index = 0; index < tasks; ++index) {
    std::vector<Wait> waits;
    for (auto n = random() % 3; n > 0 && index > 0; --n) {
      waits.push_back({static_cast<int>(random() % static_cast<unsigned>(index)), 0});
    }
    if (random() % 4 == 0) {
      waits.push_back({static_cast<int>(random() % static_cast<unsigned>(tasks)), 1});
    }
    draft.task(static_cast<Lane>(random() % kLanes), random() % 6, std::move(waits));
  }
  return std::move(draft.schedule);
}

TEST(Simulate, a_random_schedule_is_never_shorter_than_its_busiest_lane_nor_longer_than_serial) {
  constexpr unsigned kSeed = 20'261'129;
  std::mt19937 random(kSeed);
  int overlapped = 0;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << ", round " << round);
    const Schedule schedule = random_schedule(random);
    const Prediction prediction = simulate(schedule, unit_profile());
    double serial = 0;
    double busiest = 0;
    double compute =
        std::accumulate(prediction.waited_seconds.begin(), prediction.waited_seconds.end(), 0.0);
    for (int lane = 0; lane < kLanes; ++lane) {
      double work = 0;
      for (const Task& task : schedule.tasks) {
        if (task.lane == static_cast<Lane>(lane)) {
          work += task.flops + static_cast<double>(task.bytes);
        }
      }
      serial += work;
      busiest = std::max(busiest, work);
      EXPECT_DOUBLE_EQ(prediction.of(static_cast<Lane>(lane)).busy_seconds, work);
    }
    EXPECT_GE(prediction.step_seconds, busiest - 1e-9);
    EXPECT_LE(prediction.step_seconds, serial + 1e-9);
    overlapped += prediction.step_seconds < serial - 0.5 ? 1 : 0;
    const bool computes = std::ranges::any_of(
        schedule.tasks, [](const Task& task) { return task.lane == Lane::compute; });
    compute += prediction.of(Lane::compute).busy_seconds;
    if (computes) {
      EXPECT_NEAR(compute, prediction.step_seconds, 1e-9 * prediction.step_seconds);
    }
  }
  EXPECT_GT(overlapped, 150);
}

TEST(Simulate, a_figure_that_is_needed_and_not_known_is_named) {
  const auto refused = [](Lane lane, const std::function<void(HardwareProfile&)>& forget,
                          const std::string& key, const std::string& remedy) {
    Draft draft;
    draft.task(lane, 1);
    HardwareProfile profile = unit_profile();
    forget(profile);
    try {
      (void)simulate(draft.schedule, profile);
      ADD_FAILURE() << key << " was not missed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("\"unit\""), HasSubstr("no " + key), HasSubstr(remedy)));
    }
    // What is not needed need not be known.
    Draft other;
    other.task(lane == Lane::h2d ? Lane::d2h : Lane::h2d, 1);
    EXPECT_DOUBLE_EQ(simulate(other.schedule, profile).step_seconds, 1);
  };
  const std::string measured = "measure it with terrace bench all";
  refused(
      Lane::h2d, [](auto& p) { p.h2d_bytes_per_second.reset(); }, "h2d_bytes_per_second", measured);
  refused(
      Lane::disk_read, [](auto& p) { p.disk_read_bytes_per_second.reset(); },
      "disk_read_bytes_per_second", measured + " --path DIR");
  refused(
      Lane::compute, [](auto& p) { p.bf16_flops_per_second.reset(); }, "bf16_flops_per_second",
      measured);
  refused(
      Lane::optimizer, [](auto& p) { p.optimizer_bytes_per_second = 0; },
      "optimizer_bytes_per_second", measured);
  refused(
      Lane::collective, [](auto& p) { p.collective_bytes_per_second.reset(); },
      "collective_bytes_per_second", "no benchmark measures it");
}

TEST(Simulate, the_rate_of_the_compute_type_is_taken) {
  Draft draft;
  draft.task(Lane::compute, 6);
  HardwareProfile profile = unit_profile();
  profile.fp32_flops_per_second = 0.5;
  EXPECT_DOUBLE_EQ(simulate(draft.schedule, profile).step_seconds, 6);
  EXPECT_DOUBLE_EQ(simulate(draft.schedule, profile, {.compute = DType::f32}).step_seconds, 12);
}

TEST(MixedFactor, gives_back_the_mixed_rate) {
  // A drive that only switches: 1/r + 1/w for one byte each way.
  EXPECT_NEAR(mixed_factor(6.5, 3.5, 2 / (1 / 6.5 + 1 / 3.5)), 0.5, 1e-12);
  EXPECT_NEAR(mixed_factor(3.5, 6.5, 2 / (1 / 6.5 + 1 / 3.5)), 0.5, 1e-12);
  EXPECT_NEAR(mixed_factor(2, 2, 4), 1, 1e-12) << "neither hampers the other";
  EXPECT_EQ(mixed_factor(2, 2, 5), 1) << "noise";
  // The simulation with that factor moves equal amounts at the mixed rate.
  Draft draft;
  draft.task(Lane::disk_read, 1000);
  draft.task(Lane::disk_write, 1000);
  HardwareProfile profile = unit_profile();
  profile.disk_read_bytes_per_second = 30;
  profile.disk_write_bytes_per_second = 12;
  profile.disk_mixed_factor = mixed_factor(30, 12, 20);
  EXPECT_THAT(simulate(draft.schedule, profile, {.steps_in_flight = 1}).step_seconds,
              DoubleNear(2000 / 20.0, 1e-9));
}

}  // namespace
}  // namespace terrace::plan
