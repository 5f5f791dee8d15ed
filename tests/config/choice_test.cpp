#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "terrace/config/planning.h"
#include "terrace/config/profile.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/kernels/cpu.h"
#include "terrace/model/config.h"
#include "terrace/plan/simulate.h"
#include "terrace/runtime/step.h"

// What `auto` chooses, against what else could be asked for: see "Note on the choice" in
// planning.h.

namespace terrace::config::testing {
namespace {

/// A GPU's memory and the RAM beside it, and what is trained there.
struct Case {
  std::string model;
  std::int64_t accumulation;
  std::uint64_t device_gib;
  std::uint64_t host_gib;
};

class ChoiceTest : public ::testing::TestWithParam<Case> {
 protected:
  ChoiceTest()
      : ops_(kernels::make_cpu_ops({})),
        model_(model::preset(GetParam().model).config, DType::bf16, *ops_),
        layout_(shard::shape_of(model_), 1) {
    settings_.batch.micro = 8;
    settings_.batch.accumulation = GetParam().accumulation;
    settings_.placement.device_memory = Budget{.bytes = GetParam().device_gib * kGiB};
    settings_.placement.host_memory = Budget{.bytes = GetParam().host_gib * kGiB};
    settings_.placement.swap = {"/a folder of another machine"};
    settings_.placement.profile = "h200";
  }

  [[nodiscard]] double predicted(const plan::Plan& plan) const {
    return plan::simulate(plan.training, find_profile(settings_.placement.profile),
                          {.steps_in_flight = plan::kStepsInFlight})
        .step_seconds;
  }
  [[nodiscard]] ChosenPlan choose(const Settings& settings) const {
    return choose_plan(settings, model_, layout_, {.device_is_ram = false});
  }

  std::unique_ptr<kernels::Ops> ops_;
  model::Model model_;
  shard::Layout layout_;
  Settings settings_;
};

TEST_P(ChoiceTest, no_placement_that_could_be_asked_for_is_faster) {
  const ChosenPlan automatic = choose(settings_);
  const double seconds = predicted(automatic.plan);
  int others = 0;
  for (const Placement parameters : {Placement::automatic, Placement::cpu}) {
    for (const Placement activations : {Placement::none, Placement::cpu, Placement::nvme}) {
      Settings asked = settings_;
      asked.placement.parameters.device = parameters;
      asked.placement.activations.device = activations;
      try {
        const ChosenPlan other = choose(asked);
        ++others;
        EXPECT_LE(seconds, 1.01 * predicted(other.plan))
            << automatic.placement << "; " << other.placement;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::does_not_fit) << error.what();
      }
    }
  }
  EXPECT_GT(others, 0);
}

INSTANTIATE_TEST_SUITE_P(Budgets, ChoiceTest,
                         ::testing::Values(Case{"llama-1b", 1, 6, 8}, Case{"llama-1b", 4, 10, 24},
                                           Case{"llama-1b", 16, 6, 8}, Case{"llama-1b", 16, 10, 24},
                                           Case{"llama-8b", 4, 24, 120},
                                           Case{"llama-8b", 16, 24, 32},
                                           Case{"llama-8b", 16, 40, 64}),
                         [](const auto& instance) {
                           const Case& of = instance.param;
                           std::string name = of.model;
                           std::erase(name, '-');
                           return name + "_" + std::to_string(of.accumulation) + "_times_in_" +
                                  std::to_string(of.device_gib) + "_and_" +
                                  std::to_string(of.host_gib) + "_GiB";
                         });

}  // namespace
}  // namespace terrace::config::testing
