#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/plans.h"

// Where boundaries are kept, and when they move: see "Note on boundaries" in plan.h.

namespace terrace::plan {
namespace {

/// Boundaries that a region each of the plan holds.
std::int64_t boundaries_on(const Plan& plan, Tier tier) {
  return std::ranges::count_if(plan.memory.regions(), [&](const memory::Region& region) {
    return region.purpose == "block inputs" && region.tier == tier && region.persistent() &&
           region.bytes > 0;
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

}  // namespace
}  // namespace terrace::plan
