#include "filling.h"

#include <gtest/gtest.h>

#include "terrace/core/units.h"
#include "terrace/kernels/cpu.h"
#include "terrace/plan/search.h"
#include "train/training.h"

namespace terrace::plan::testing {
namespace {
using train::testing::small_llama;

TEST(FillBoundaries, as_many_stay_as_fit_whatever_they_take_beside_their_sum) {
  const auto ops = kernels::make_cpu_ops({});
  const model::Model model(small_llama(false), DType::bf16, *ops);
  const shard::Layout layout(shard::shape_of(model), 1);
  Policy policy;
  // Long enough that a boundary counts beside what is planned for a step's tasks, whole MiB.
  policy.request.micro_batch = {64, 64};
  policy.request.micro_batches = 32;
  policy.request.gradient = DType::bf16;
  policy.request.state = {
      {StateKind::master, 4}, {StateKind::exp_avg, 4}, {StateKind::exp_avg_sq, 4}};
  policy.request.chunk_elements = 1 << 16;
  policy.order = MicroBatchOrder::unit_major;
  policy.state.tier = policy.parameters.tier = memory::Tier::device;
  policy.activations.tier = memory::Tier::disk;
  policy.has_drives = true;
  policy.budgets.process_bytes = std::uint64_t{1} << 30;
  const Plan none = std::get<Choice>(search(model, layout, policy)).plan;
  const std::size_t all = none.boundary_home.size();
  ASSERT_GE(all, 32U);
  auto keeping = [&](double share) {
    PlanRequest request = none.request;
    request.placement.boundaries_resident = share;
    return draft_plan(model, layout, request);
  };
  const std::uint64_t each = round_up(none.memory.region(none.boundary_home.front()).bytes,
                                      memory::MemoryPlan::kAlignmentBytes);
  Budgets budgets;
  budgets.process_bytes = Need(none).process_bytes + 5 * each;
  std::size_t most = 0;
  const auto of_all = [&](std::size_t count) {
    return static_cast<double>(count) / static_cast<double>(all);
  };
  while (most < all && Need(keeping(of_all(most + 1))).fits(budgets)) ++most;
  ASSERT_GE(most, 5U);
  ASSERT_LT(most, 10U);
  // As many more of them than asked for stand for what a plan may take beside them.
  for (const std::size_t more : {0, 1, 4}) {
    const Filling filling{model, layout, budgets, [&](const Placement& placement) {
                            return keeping(placement.boundaries_resident + of_all(more));
                          }};
    Plan filled = none;
    fill_boundaries(filled, filling);
    EXPECT_EQ(filled.boundary_home.size(), all - most) << more;
    EXPECT_TRUE(Need(filled).fits(budgets));
  }
}

}  // namespace
}  // namespace terrace::plan::testing
