#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "train/variants.h"

// What equality_test and resume_test show on a covering subset, in full.

namespace terrace::train::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAreArray;

class EqualityProductTest : public TrainingTest {
 protected:
  void remove(const std::string& output) const { fs::remove_all(folder_ / output); }
};

/// Where parameters lie, and which share of them.
constexpr std::array kParameters = {
    std::pair(config::Placement::none, 1.0), std::pair(config::Placement::cpu, 1.0),
    std::pair(config::Placement::nvme, 1.0), std::pair(config::Placement::cpu, 0.5),
    std::pair(config::Placement::nvme, 0.5)};
constexpr std::array kStates = {
    std::pair(config::Placement::none, 1.0), std::pair(config::Placement::cpu, 1.0),
    std::pair(config::Placement::nvme, 1.0), std::pair(config::Placement::nvme, 0.5)};

/// Accumulation and clipping.
using Run = std::tuple<int, double>;

class EveryPlacement : public EqualityProductTest, public ::testing::WithParamInterface<Run> {};

TEST_P(EveryPlacement, has_the_same_losses_for_30_steps) {
  const auto& [accumulation, clip] = GetParam();
  config::Settings base = settings("reference");
  base.length.max_steps = 30;
  base.batch.accumulation = accumulation;
  base.optimizer.max_grad_norm = clip;
  const std::vector<Row> reference = run(base);
  ASSERT_EQ(reference.size(), 30U);
  remove("reference");
  base.output.folder = folder_ / "run";
  // Each of the product's four parts pairs placements with other activations.
  const int first = accumulation / 2 + (clip > 0 ? 1 : 0);
  int number = first;
  for (const auto& [parameters, share] : kParameters) {
    for (const auto& [state, ratio] : kStates) {
      for (const auto order :
           {config::MicroBatchOrder::batch_major, config::MicroBatchOrder::unit_major}) {
        for (const std::int64_t prefetch : {1, 3}) {
          for (const std::int64_t chunk : {2048, 1 << 16}) {
            // Half of the parameters: with the rest of the run's state on disk alone.
            const bool all_on_disk = state == config::Placement::nvme && ratio == 1;
            if (share < 1 && (!all_on_disk || prefetch > 1 || chunk > 2048)) continue;
            Variant variant{parameters, state, ratio, order, number % 2 == 0,
                            prefetch,   chunk, 0,     share};
            place_activations(variant, number);
            SCOPED_TRACE(describe(variant));
            ASSERT_THAT(run(with(base, variant)), ElementsAreArray(reference));
            remove("run");
            ++number;
          }
        }
      }
    }
  }
  std::printf("%d runs of 30 steps, each equal to its reference to the last bit\n", number - first);
}

INSTANTIATE_TEST_SUITE_P(EqualityProduct, EveryPlacement,
                         ::testing::Combine(::testing::Values(1, 4), ::testing::Values(0.0, 1.0)),
                         [](const auto& tested) {
                           return fmt::format(
                               "accumulation_{}_{}", std::get<0>(tested.param),
                               std::get<1>(tested.param) > 0 ? "clipped" : "unclipped");
                         });

class EveryTier : public EqualityProductTest, public ::testing::WithParamInterface<DType> {};

/// Fifty steps are eight epochs over three files; the twenty exits fall into the first four.
TEST_P(EveryTier, has_the_same_losses_for_50_steps_with_a_save_and_an_exit_at_each_of_twenty) {
  config::Settings base = settings("reference");
  base.numerics.dtype = GetParam();
  base.length.max_steps = 50;
  const std::vector<Row> reference = run(base);
  ASSERT_EQ(reference.size(), 50U);
  for (const config::Placement state :
       {config::Placement::none, config::Placement::cpu, config::Placement::nvme}) {
    for (const bool recompute : {true, false}) {
      SCOPED_TRACE(static_cast<int>(state));
      config::Settings settings = base;
      settings.output.folder = folder_ / "chain";
      settings.output.resume = "auto";
      settings.placement.optimizer.device = state;
      settings.numerics.gradient_checkpointing = recompute;
      settings.cadence.save_steps = 1;
      int exits = 0;
      for (int code = 143; code == 143;) {
        const Result result = train_run(settings, [&](const std::string& line, auto& signal) {
          if (line.rfind("saved ", 0) == 0 && exits < 20) signal = SIGTERM;
        });
        code = result.code;
        exits += code == 143 ? 1 : 0;
        ASSERT_TRUE(code == 0 || code == 143) << result.error;
      }
      EXPECT_EQ(exits, 20);
      ASSERT_THAT(rows(settings.output.folder), ElementsAreArray(reference));
      remove("chain");
      std::printf("%s, state on %d, recomputation %s: 50 steps, %d saves with an exit, equal\n",
                  std::string(name_of(GetParam())).c_str(), static_cast<int>(state),
                  recompute ? "on" : "off", exits);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EqualityProduct, EveryTier, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

}  // namespace
}  // namespace terrace::train::testing
