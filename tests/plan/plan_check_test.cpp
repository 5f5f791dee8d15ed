#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "core/sanitized.h"
#include "memory/packing.h"
#include "plan/plans.h"
#include "plan/schedules.h"

// Real plans pass the checker, and altered ones do not.

namespace terrace::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST_F(PlanTest, every_plan_of_the_product_is_packed_and_safe) {
  int plans = 0;
  for (const PlanRequest& base : {request(), split_request(), early_request()}) {
    for_each_request(base, [&](const PlanRequest& request) {
      if (HasFailure()) return;
      SCOPED_TRACE(describe(request));
      const Plan plan = make(request);
      EXPECT_EQ(plan.updates_before_decision, request.may_update_before_decision);
      memory::expect_packed(plan.memory);
      EXPECT_THAT(check(plan.training, plan.memory), IsEmpty());
      EXPECT_THAT(check(plan.evaluation, plan.memory), IsEmpty());
      ++plans;
    });
  }
  const auto requests = [](int placements) {
    const int all = placements * 2 * 2 * 2 * 3 * 2;
    return kSanitized ? (all + 4) / 5 : all;
  };
  EXPECT_EQ(plans, 2 * requests(22) + requests(3));
}

TEST_F(PlanTest, the_check_fails_without_any_one_of_the_waits) {
  int waits = 0;
  for (const PlanRequest& request : requests_for_mutation(request(), split_request())) {
    SCOPED_TRACE(describe(request));
    const Plan plan = make(request);
    for (const Schedule* schedule : {&plan.training, &plan.evaluation}) {
      for (int wait = 0; wait < static_cast<int>(schedule->waits.size()); ++wait) {
        ++waits;
        EXPECT_THAT(check(without_wait(*schedule, wait), plan.memory), Not(IsEmpty()))
            << "wait " << wait << " for task " << schedule->waits[wait].task
            << " is implied by others";
      }
    }
  }
  std::printf("%d waits removed, one at a time\n", waits);
  EXPECT_GT(waits, 1000);
}

TEST_F(PlanTest, the_check_finds_a_missing_wait_among_many_micro_batches) {
  PlanRequest request = PlanTest::request();
  request.placement = {Tier::host, Tier::disk, Tier::host, 0.5};
  request.placement.boundaries = Tier::disk;
  request.micro_batches = 512;
  for (const auto order : {MicroBatchOrder::batch_major, MicroBatchOrder::unit_major}) {
    request.order = order;
    const Plan plan = make(request);
    EXPECT_GT(plan.training.tasks.size(), 5000U);
    EXPECT_THAT(check(plan.training, plan.memory), IsEmpty());
    const auto wait = static_cast<int>(plan.training.waits.size() / 2);
    EXPECT_THAT(check(without_wait(plan.training, wait), plan.memory), Not(IsEmpty()));
  }
}

TEST_F(PlanTest, the_check_finds_an_access_that_nobody_knew_of) {
  PlanRequest request = PlanTest::request();
  request.placement = {Tier::host, Tier::disk, Tier::host, 0.5};
  request.chunk_elements = 1 << 16;
  const Plan plan = make(request);
  const auto regions = plan.memory.regions();
  const auto scratch = std::ranges::find(regions, std::string("scratch"), &memory::Region::purpose);
  const memory::RegionId id(static_cast<int>(scratch - regions.begin()));
  // Each task of another lane in turn writes into the memory that the compute lane works in.
  ByLane<int> found;
  for (std::size_t task = 0; task < plan.training.tasks.size(); ++task) {
    const Lane lane = plan.training.tasks[task].lane;
    if (lane == Lane::compute) continue;
    Schedule wrong = plan.training;
    add_access(wrong, task, {id, 0, scratch->bytes, true});
    if (!check(wrong, plan.memory).empty()) {
      ++found[lane];
      continue;
    }
    // Some are ordered with all of the compute lane's tasks, such as the decision of the step.
    for (unsigned seed = 0; seed < 5; ++seed) {
      EXPECT_FALSE(RandomRun(wrong, plan.memory).goes_wrong(2, seed)) << "task " << task;
    }
  }
  for (const Lane lane :
       {Lane::h2d, Lane::d2h, Lane::disk_read, Lane::disk_write, Lane::optimizer}) {
    EXPECT_GT(found[lane], 0) << name_of(lane);
  }
}

/// What a plan reserves of each tier.
TierBytes planned_bytes(const Plan& plan) {
  return {plan.memory.bytes(Tier::device), plan.memory.bytes(Tier::host),
          plan.memory.bytes(Tier::disk)};
}

TEST_F(PlanTest, the_check_finds_a_tier_that_is_planned_too_small) {
  for (const PlanRequest& request : requests_for_mutation(request(), split_request())) {
    if (request.chunk_elements == 2048 && request.micro_batches > 1) continue;  // the large ones
    SCOPED_TRACE(describe(request));
    const Plan plan = make(request);
    const TierBytes planned = planned_bytes(plan);
    const TierBytes peak = peak_bytes(plan.training, plan.memory);
    for (const Tier tier : memory::kAllTiers) {
      ASSERT_LE(peak[tier], planned[tier]);
      if (planned[tier] == 0) continue;
      TierBytes less = planned;
      less[tier] -= memory::MemoryPlan::kAlignmentBytes;  // the smallest slot
      const std::vector<std::string> faults = check(plan.training, plan.memory, less);
      EXPECT_THAT(faults, Not(IsEmpty()));
      EXPECT_THAT(faults,
                  ::testing::Each(::testing::AllOf(
                      HasSubstr("the " + std::string(name_of(tier)) + " tier"),
                      HasSubstr("but " + std::to_string(less[tier]) + " bytes are planned"))));
    }
  }
}

/// `regions` packed anew as if nothing touched the one at `index` after its first task.
memory::MemoryPlan with_early_release(const memory::MemoryPlan& regions, std::size_t index) {
  memory::MemoryPlan other;
  for (const memory::Region& region : regions.regions()) {
    const bool early = other.regions().size() == index;
    const memory::RegionId id = other.add(region.purpose, region.tier, region.bytes);
    if (region.persistent()) continue;
    other.use(id, region.first_use);
    if (!early) other.use(id, region.last_use);
  }
  other.pack();
  return other;
}

/// Whether some task, one after the other, reads what was last written as another region: whole
/// pages, as no two regions share one at a time.
bool reads_what_is_not_its_own(const Schedule& schedule, const memory::MemoryPlan& regions) {
  constexpr std::uint64_t kPage = memory::MemoryPlan::kAlignmentBytes;
  memory::ByTier<std::vector<int>> owner;
  for (const Tier tier : memory::kAllTiers) {
    owner[tier].assign(regions.bytes(tier) / kPage, -1);
  }
  for (const Task& task : schedule.tasks) {
    for (const Access& access : schedule.accesses_of(task)) {
      const memory::Region& region = regions.region(access.region);
      if (access.bytes == 0) continue;
      const std::uint64_t begin = region.offset + access.offset;
      for (auto page = begin / kPage; page <= (begin + access.bytes - 1) / kPage; ++page) {
        int& now = owner[region.tier][page];
        if (!access.write && now >= 0 && now != access.region.value) return true;
        if (access.write) now = access.region.value;
      }
    }
  }
  return false;
}

TEST_F(PlanTest, the_check_finds_a_slot_that_is_released_before_its_last_use) {
  int wrong = 0;
  for (const Placement& placement : {Placement{Tier::disk, Tier::disk, Tier::host, 0},
                                     Placement{Tier::host, Tier::disk, Tier::host, 0.5}}) {
    PlanRequest request = early_request();
    request.placement = placement;
    request.chunk_elements = 1 << 16;
    const Plan plan = make(request);
    EXPECT_FALSE(reads_what_is_not_its_own(plan.training, plan.memory));
    for (std::size_t index = 0; index < plan.memory.regions().size(); ++index) {
      if (plan.memory.regions()[index].persistent()) continue;
      const memory::MemoryPlan regions = with_early_release(plan.memory, index);
      Schedule schedule = plan.training;
      infer_waits(schedule, regions);  // all is in order, for what it is
      if (!reads_what_is_not_its_own(schedule, regions)) continue;
      ++wrong;
      EXPECT_THAT(check(schedule, regions), ::testing::Contains(HasSubstr("both are leased at")))
          << plan.memory.regions()[index].purpose;
    }
  }
  EXPECT_GT(wrong, 5) << "a release too early mostly gives another region the memory";
}

TEST_F(PlanTest, the_slots_of_a_plan_with_one_fewer_do_not_hold_the_schedule) {
  PlanRequest request = PlanTest::request();
  request.placement = {Tier::host, Tier::disk, Tier::host, 0};
  request.chunk_slots = 3;
  const Plan plan = make(request);
  --request.chunk_slots;
  const TierBytes fewer = planned_bytes(make(request));
  const std::uint64_t peak = peak_bytes(plan.training, plan.memory)[Tier::host];
  EXPECT_THAT(check(plan.training, plan.memory, fewer),
              ::testing::ElementsAre(::testing::AllOf(
                  HasSubstr("the host tier has " + std::to_string(peak) + " bytes leased at once"),
                  HasSubstr("but " + std::to_string(fewer[Tier::host]) + " bytes are planned"))));
}

TEST_F(PlanTest, random_runs_of_real_plans_never_go_wrong) {
  constexpr unsigned kSeed = 20'260'205;
  unsigned seed = kSeed;
  for (const PlanRequest& request : requests_for_mutation(request(), split_request())) {
    if (request.chunk_elements == 2048 && request.micro_batches > 1) continue;  // the large ones
    SCOPED_TRACE(describe(request) + ", seed " + std::to_string(++seed));
    const Plan plan = make(request);
    ASSERT_FALSE(RandomRun(plan.training, plan.memory).goes_wrong(2, seed));
  }
}

}  // namespace
}  // namespace terrace::plan
