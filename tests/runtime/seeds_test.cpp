#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "runtime/rig.h"

// What executor_test shows for some seeds, for many.

namespace terrace::runtime::testing {
namespace {

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

TEST(Seeds, a_skipped_step_under_early_updates_leaves_the_same_run) {
  constexpr std::int64_t kSkipped = 2;
  constexpr std::int64_t kSteps = 4;
  const std::vector<StepResult> reference = Rig(small_request(), kSkipped).run_threads(kSteps);
  ASSERT_FALSE(std::isfinite(reference[kSkipped - 1].loss));
  ASSERT_TRUE(std::isfinite(reference[kSkipped].loss));
  std::uint64_t seed = 1;
  for (const plan::PlanRequest& request : requests()) {
    if (!request.may_update_before_decision) continue;
    Rig rig(request, kSkipped);
    ASSERT_TRUE(rig.plan().updates_before_decision);
    for (int round = 0; round < 50; ++round, ++seed) {
      ASSERT_EQ(rig.run_seeded(seed, kSteps), reference) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace terrace::runtime::testing
