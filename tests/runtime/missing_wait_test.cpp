#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "runtime/forbidden_order.h"

namespace terrace::runtime::testing {
namespace {

using memory::Tier;

std::string describe(const plan::Schedule& schedule, int index) {
  const int waiting = plan::task_with_wait(schedule, index);
  const plan::Wait& wait = schedule.waits[static_cast<std::size_t>(index)];
  const auto name = [&](int number) {
    const plan::Task& task = schedule.tasks[static_cast<std::size_t>(number)];
    return std::string(name_of(task.kind)) + " (task " + std::to_string(number) + ", unit " +
           std::to_string(task.unit) + ", flat " + std::to_string(task.flat) + ", chunk " +
           std::to_string(task.chunk) + ")";
  };
  return name(waiting) + " for " + name(wait.task) +
         (wait.steps_back > 0 ? " of the step before" : "");
}

/// Real threads may still miss the order that is asked for, so a run is tried a few times.
constexpr int kTries = 10;

/// Whether a run comes to something else, or ends in an error: a page that was changed while it was
/// being written has the wrong checksum.
bool is_off(ForbiddenOrders& orders, int wait, const std::vector<StepResult>& reference) {
  try {
    for (int attempt = 0; attempt < kTries; ++attempt) {
      if (orders.run_without(wait) != reference) return true;
    }
    return false;
  } catch (const Error&) {
    return true;
  }
}

/// Removes each wait in turn: the checker must name it, and the run in which what it forbids
/// happens must be seen to be another one.
void expect_every_wait_matters(plan::PlanRequest request) {
  request.chunk_elements = 1 << 14;
  // What an early update has written is dropped in a skipped step only.
  ForbiddenOrders orders(request, request.may_update_before_decision ? 2 : 0);
  const std::vector<StepResult> reference = orders.run_whole();
  ASSERT_EQ(reference.size(), 4U);
  ASSERT_EQ(orders.run_whole(), reference);
  const plan::Schedule& whole = orders.schedule();
  ASSERT_GT(whole.waits.size(), 10U);
  for (int wait = 0; wait < static_cast<int>(whole.waits.size()); ++wait) {
    SCOPED_TRACE(describe(whole, wait));
    EXPECT_FALSE(plan::check(plan::without_wait(whole, wait), orders.regions()).empty());
    EXPECT_TRUE(is_off(orders, wait, reference));
  }
  std::printf("all of %zu missing waits are named by the checker and change the run\n",
              whole.waits.size());
}

void expect_every_wait_matters(const plan::Placement& placement, bool early = false) {
  plan::PlanRequest request = small_request();
  request.placement = placement;
  request.micro_batches = 1;
  request.may_update_before_decision = early;
  expect_every_wait_matters(request);
}

TEST(MissingWait, changes_a_run_with_all_on_the_device) {
  expect_every_wait_matters({Tier::device, Tier::device, Tier::host, 0});
}
TEST(MissingWait, changes_a_run_with_state_in_RAM) {
  expect_every_wait_matters({Tier::host, Tier::host, Tier::host, 0});
}
TEST(MissingWait, changes_a_run_with_state_on_disk) {
  expect_every_wait_matters({Tier::device, Tier::disk, Tier::host, 0});
}
TEST(MissingWait, changes_a_run_with_half_of_the_state_on_disk) {
  expect_every_wait_matters({Tier::host, Tier::disk, Tier::host, 0.5});
}
TEST(MissingWait, changes_a_run_with_all_on_disk) {
  expect_every_wait_matters({Tier::disk, Tier::disk, Tier::host, 0});
}
TEST(MissingWait, changes_a_run_with_early_updates_of_which_one_is_dropped) {
  expect_every_wait_matters({Tier::disk, Tier::disk, Tier::host, 0}, true);
}
TEST(MissingWait, changes_a_run_with_half_of_the_parameters_resident) {
  expect_every_wait_matters({Tier::disk, Tier::disk, Tier::host, 0, Tier::device, 0.5});
}
TEST(MissingWait, changes_a_run_in_which_some_updates_are_early_and_some_are_not) {
  expect_every_wait_matters({Tier::disk, Tier::disk, Tier::host, 0, Tier::host, 0.5}, true);
}

void expect_every_wait_of_boundaries_matters(Tier tier) {
  for (const auto order : {plan::MicroBatchOrder::batch_major, plan::MicroBatchOrder::unit_major}) {
    plan::PlanRequest request = small_request();
    request.placement.boundaries = tier;
    request.order = order;
    expect_every_wait_matters(request);
  }
}

TEST(MissingWait, changes_a_run_with_boundaries_in_RAM) {
  expect_every_wait_of_boundaries_matters(Tier::host);
}
TEST(MissingWait, changes_a_run_with_boundaries_on_disk) {
  expect_every_wait_of_boundaries_matters(Tier::disk);
}

}  // namespace
}  // namespace terrace::runtime::testing
