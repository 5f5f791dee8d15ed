#include "filling.h"

#include <gtest/gtest.h>

#include "terrace/config/planning.h"
#include "terrace/core/units.h"
#include "terrace/kernels/cpu.h"
#include "train/training.h"

namespace terrace::config::testing {
namespace {
using train::testing::small_llama;

TEST(FillBoundaries, as_many_stay_as_fit_whatever_they_take_beside_their_sum) {
  Log log([](LogLevel, std::string_view) {});
  const auto ops = kernels::make_cpu_ops({}, log);
  const model::Model model(small_llama(false), DType::bf16, *ops);
  const shard::Layout layout(shard::shape_of(model), 1);
  Settings settings;
  // Long enough that a boundary counts beside what is planned for a step's tasks, whole MiB.
  settings.data.max_length = 64;
  settings.batch.micro = 64;
  settings.batch.accumulation = 32;
  settings.batch.order = MicroBatchOrder::unit_major;
  settings.placement.swap = {"/a folder of another machine"};
  settings.placement.host_memory = Budget{.bytes = std::uint64_t{1} << 30};
  settings.placement.activations.device = Placement::nvme;
  const plan::Plan none = choose_plan(settings, model, layout).plan;
  const std::size_t all = none.boundary_home.size();
  ASSERT_GE(all, 32U);
  auto keeping = [&](double share) {
    plan::PlanRequest request = none.request;
    request.placement.boundaries_resident = share;
    return plan::draft_plan(model, layout, request);
  };
  const std::uint64_t each = round_up(none.memory.region(none.boundary_home.front()).bytes,
                                      memory::MemoryPlan::kAlignmentBytes);
  plan::Budgets budgets;
  budgets.process_bytes = plan::Need(none).process_bytes + 5 * each;
  std::size_t most = 0;
  const auto of_all = [&](std::size_t count) {
    return static_cast<double>(count) / static_cast<double>(all);
  };
  while (most < all && plan::Need(keeping(of_all(most + 1))).fits(budgets)) ++most;
  ASSERT_GE(most, 5U);
  ASSERT_LT(most, 10U);
  // As many more of them than asked for stand for what a plan may take beside them.
  for (const std::size_t more : {0, 1, 4}) {
    const Filling filling{model, layout, budgets, [&](const plan::Placement& placement) {
                            return keeping(placement.boundaries_resident + of_all(more));
                          }};
    plan::Plan filled = none;
    fill_boundaries(filled, filling);
    EXPECT_EQ(filled.boundary_home.size(), all - most) << more;
    EXPECT_TRUE(plan::Need(filled).fits(budgets));
  }
}

}  // namespace
}  // namespace terrace::config::testing
