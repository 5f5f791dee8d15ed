#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "engine/rig.h"
#include "plan/schedules.h"

// What executor_test shows for some seeds and waits, for many and for all.

namespace terrace::engine::testing {
namespace {

using memory::Tier;

TEST(Seeds, a_thousand_orders_and_disks_give_the_same_bits) {
  const std::vector<plan::PlanRequest> all = requests();
  const std::vector<StepResult> reference = Rig(small_request()).run_threads();
  std::uint64_t seed = 1000;
  for (std::size_t number = 0; number < all.size(); ++number) {
    Rig rig(all[number]);
    const std::uint64_t last = 1000 + 1000 * (number + 1) / all.size();
    for (; seed < last; ++seed) {
      ASSERT_EQ(rig.run_seeded(seed), reference)
          << "seed " << seed << ", parameters on " << name_of(all[number].placement.parameters)
          << ", state on " << name_of(all[number].placement.state);
    }
  }
}

/// Whether the run comes to something else, or ends in an error: a page that was changed while it
/// was being written has the wrong checksum.
bool is_off(Rig& rig, std::uint64_t seed, const std::vector<StepResult>& reference) {
  try {
    return rig.run_seeded(seed, 2) != reference;
  } catch (const Error&) {
    return true;
  }
}

/// Of the waits of the training schedule, how many are seen to be missing within so many seeds.
void expect_missing_waits_are_seen(const plan::Placement& placement, std::uint64_t seeds) {
  plan::PlanRequest request = small_request();
  request.placement = placement;
  request.micro_batches = 1;
  request.chunk_elements = 1 << 14;
  Rig rig(request);
  const std::vector<StepResult> reference = rig.run_threads(2);
  const plan::Schedule whole = rig.plan().training;
  int seen = 0;
  const int waits = static_cast<int>(whole.waits.size());
  for (int wait = 0; wait < waits; ++wait) {
    rig.plan().training = plan::without_wait(whole, wait);
    ASSERT_FALSE(plan::check(rig.plan().training, rig.plan().memory).empty()) << "wait " << wait;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      if (!is_off(rig, seed, reference)) continue;
      ++seen;
      break;
    }
  }
  std::printf("%d of %d missing waits change a run within %d seeds; the checker names all\n", seen,
              waits, static_cast<int>(seeds));
  EXPECT_GT(seen, waits / 4);
}

// The threads of disks and optimizer are beyond the seeded device's control, so not every wait of
// theirs is seen: the writes to a disk in memory, for one, always come before the next step's
// reads.

TEST(Seeds, missing_waits_change_a_run_with_state_in_RAM) {
  expect_missing_waits_are_seen({Tier::host, Tier::host, Tier::host, 0}, 10);
}
TEST(Seeds, missing_waits_change_a_run_with_state_on_disk) {
  expect_missing_waits_are_seen({Tier::device, Tier::disk, Tier::host, 0}, 10);
}
TEST(Seeds, missing_waits_change_a_run_with_all_on_disk) {
  expect_missing_waits_are_seen({Tier::disk, Tier::disk, Tier::host, 0}, 10);
}

}  // namespace
}  // namespace terrace::engine::testing
