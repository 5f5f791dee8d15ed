#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/plans.h"

// Where boundaries are kept, and when they move: see "Note on boundaries" in plan.h.

namespace terrace::plan {
namespace {

/// Boundaries that a region each of the plan holds; on disk they are scratch.
std::int64_t boundaries_on(const Plan& plan, Tier tier) {
  return std::ranges::count_if(plan.memory.regions(), [&](const memory::Region& region) {
    return region.purpose == "block inputs" && region.tier == tier &&
           region.persistent() == (tier != Tier::disk) && region.bytes > 0;
  });
}

class DeepPlanTest : public PlanTest {
 protected:
  static constexpr int kLayers = 6;

  DeepPlanTest() : PlanTest(deep()) {}
  static model::Config deep() {
    model::Config config = model::awkward_llama(true);
    config.num_hidden_layers = kLayers;
    return config;
  }
  [[nodiscard]] std::uint64_t boundary() const {
    return static_cast<std::uint64_t>(kTokens * model_.config().hidden_size) * 2;
  }
};

TEST_F(DeepPlanTest, boundaries_that_leave_have_slots_on_the_device_and_the_last_ones_stay) {
  PlanRequest request = PlanTest::request();
  request.placement.boundaries = Tier::host;
  for (const auto order : {MicroBatchOrder::batch_major, MicroBatchOrder::unit_major}) {
    for (const int micro_batches : {1, 4}) {
      for (const int prefetch : {0, 1, 2}) {
        request.order = order;
        request.micro_batches = micro_batches;
        request.prefetch_units = prefetch;
        request.placement.boundaries_resident = 0;
        SCOPED_TRACE(describe(request));
        const int copies = order == MicroBatchOrder::unit_major ? micro_batches : 1;
        const Plan plan = make(request);
        const int may_leave = (prefetch > 0 ? kLayers - 1 : kLayers) * copies;
        EXPECT_EQ(boundaries_on(plan, Tier::host), may_leave);
        EXPECT_EQ(boundaries_on(plan, Tier::device), 0);
        // Between two units a micro-batch has one, and at the last block two if its input stays.
        const int passing = prefetch > 0 ? 2 * copies : copies + 1;
        const int ahead = prefetch * copies + 2;  // the one that is read, and an output
        EXPECT_EQ(most_at_once(plan, "block inputs", Tier::device),
                  static_cast<std::uint64_t>(std::max(passing, ahead)) * boundary());

        request.placement.boundaries_resident = 0.5;
        const Plan half = make(request);
        const int staying = may_leave / 2;
        EXPECT_EQ(boundaries_on(half, Tier::device), staying);
        EXPECT_EQ(boundaries_on(half, Tier::host), may_leave - staying);
        for (const Task& task : half.training.tasks) {
          const bool moves =
              task.kind == TaskKind::store_boundary || task.kind == TaskKind::fetch_boundary;
          EXPECT_TRUE(!moves || (task.unit - 1) * copies < may_leave - staying) << task.unit;
        }
      }
    }
  }
}

TEST_F(DeepPlanTest, a_boundary_is_fetched_so_many_units_ahead_and_stored_under_the_next_forward) {
  PlanRequest request = PlanTest::request();
  request.placement.boundaries = Tier::host;
  request.prefetch_units = 2;
  const Plan plan = make(request);
  const auto position = [&](TaskKind kind, int unit) {
    const auto& tasks = plan.training.tasks;
    return std::ranges::find_if(
               tasks, [&](const Task& task) { return task.kind == kind && task.unit == unit; }) -
           tasks.begin();
  };
  for (int unit = 1; unit < kLayers; ++unit) {
    const auto fetch = position(TaskKind::fetch_boundary, unit);
    EXPECT_LT(position(TaskKind::store_boundary, unit), position(TaskKind::forward, unit));
    EXPECT_LT(fetch, position(TaskKind::recompute, unit));
    if (unit + 2 > kLayers) {
      EXPECT_LT(fetch, position(TaskKind::head, kLayers + 1));
      continue;
    }
    EXPECT_LT(fetch, position(TaskKind::recompute, unit + 2));
    EXPECT_GT(fetch, unit + 3 > kLayers ? position(TaskKind::head, kLayers + 1)
                                        : position(TaskKind::backward, unit + 3));
  }
}

TEST_F(DeepPlanTest, boundaries_on_the_host_take_what_the_device_no_longer_holds) {
  for (const bool recompute : {true, false}) {
    PlanRequest request = PlanTest::request();
    request.order = MicroBatchOrder::unit_major;
    request.micro_batches = 4;
    request.recompute = recompute;
    const Plan on_device = make(request);
    request.placement.boundaries = Tier::host;
    const Plan on_host = make(request);
    const std::uint64_t page = memory::MemoryPlan::kAlignmentBytes;
    const std::uint64_t each = (boundary() + page - 1) / page * page;
    EXPECT_EQ(on_host.memory.bytes(Tier::host) - on_device.memory.bytes(Tier::host),
              (kLayers - 1) * 4 * each);
    EXPECT_LT(on_host.memory.bytes(Tier::device) + (kLayers - 1) * 4 * each,
              on_device.memory.bytes(Tier::device));
  }
}

TEST_F(DeepPlanTest, boundaries_on_disk_pass_so_many_slots_of_the_host) {
  for (const auto order : {MicroBatchOrder::batch_major, MicroBatchOrder::unit_major}) {
    for (const int prefetch : {1, 2}) {
      PlanRequest request = PlanTest::request();
      request.order = order;
      request.micro_batches = 4;
      request.prefetch_units = prefetch;
      request.placement.boundaries = Tier::host;
      const Plan on_host = make(request);
      request.placement.boundaries = Tier::disk;
      SCOPED_TRACE(describe(request));
      const Plan on_disk = make(request);
      const std::uint64_t page = memory::MemoryPlan::kAlignmentBytes;
      const std::uint64_t each = (boundary() + page - 1) / page * page;
      const auto all = static_cast<std::uint64_t>(boundaries_on(on_host, Tier::host));
      const auto slots = static_cast<std::uint64_t>(prefetch + 2);
      EXPECT_EQ(boundaries_on(on_disk, Tier::host), 0);
      EXPECT_EQ(static_cast<std::uint64_t>(boundaries_on(on_disk, Tier::disk)), all);
      EXPECT_EQ(most_at_once(on_disk, "block input slots", Tier::host), slots * each);
      EXPECT_EQ(on_disk.memory.bytes(Tier::host) + all * each,
                on_host.memory.bytes(Tier::host) + slots * each);
      EXPECT_EQ(on_disk.memory.bytes(Tier::disk), all * each);
      EXPECT_EQ(on_disk.memory.bytes(Tier::device), on_host.memory.bytes(Tier::device));
    }
  }
}

TEST_F(DeepPlanTest, boundaries_on_disk_are_in_no_commit_and_have_one_extent) {
  PlanRequest request = early_request();
  request.placement = {Tier::disk, Tier::disk, Tier::host, 0};
  const Plan without = make(request);
  request.placement.boundaries = Tier::disk;
  const Plan plan = make(request);
  ASSERT_TRUE(plan.commits_every_step);
  const std::uint64_t scratch = plan.memory.bytes(Tier::disk) - without.memory.bytes(Tier::disk);
  EXPECT_GT(scratch, 0U);
  EXPECT_EQ(plan.reserved_bytes(Tier::disk), 2 * without.memory.bytes(Tier::disk) + scratch);
  std::uint64_t reserved = 0;
  for (const memory::PurposeBytes& row : plan.memory.by_purpose()) {
    if (row.tier == Tier::disk) reserved += plan.reserved_bytes(row);
  }
  EXPECT_EQ(reserved, plan.reserved_bytes(Tier::disk));
  for (const Task& task : plan.training.tasks) {
    if (!is_about_all_pages(task.kind)) continue;
    for (const Access& access : plan.training.accesses_of(task)) {
      EXPECT_NE(plan.memory.region(access.region).purpose, "block inputs") << name_of(task.kind);
    }
  }
  // A store keeps its pages, whose ids are these, whatever becomes of the boundaries.
  for (std::size_t chunk = 0; chunk < plan.chunks.size(); ++chunk) {
    EXPECT_EQ(plan.state[chunk][0].region, without.state[chunk][0].region);
    EXPECT_EQ(plan.parameter[chunk].region, without.parameter[chunk].region);
  }
}

TEST_F(DeepPlanTest, a_boundary_is_written_before_it_is_read_and_its_slot_is_not_taken_meanwhile) {
  PlanRequest request = PlanTest::request();
  request.placement.boundaries = Tier::disk;
  const Plan plan = make(request);
  const auto& tasks = plan.training.tasks;
  // Without what a read, a store or a write waits for, the check names it and the bytes.
  for (const auto& [kind, purpose] : {std::pair(TaskKind::read_boundary, "block inputs"),
                                      std::pair(TaskKind::store_boundary, "block input slots"),
                                      std::pair(TaskKind::write_boundary, "block input slots")}) {
    const std::string name(name_of(kind));
    SCOPED_TRACE(name);
    Schedule schedule = plan.training;
    for (Task& task : schedule.tasks) {
      if (task.kind == kind) task.wait_count = 0;
    }
    const std::vector<std::string> faults = check(schedule, plan.memory);
    EXPECT_THAT(faults, ::testing::Contains(::testing::AllOf(
                            ::testing::HasSubstr("(" + name),
                            ::testing::HasSubstr("\"" + std::string(purpose) + "\""),
                            ::testing::HasSubstr("neither waits for the other"))));
  }
  EXPECT_TRUE(std::ranges::any_of(
      tasks, [](const Task& task) { return task.kind == TaskKind::read_boundary; }));
}

}  // namespace
}  // namespace terrace::plan
