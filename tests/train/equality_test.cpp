#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/sanitized.h"
#include "train/variants.h"

// "Placement never changes the result": a covering subset of what equality_product_test runs in
// full.

namespace terrace::train::testing {
namespace {

using ::testing::ElementsAreArray;

/// Each tier for the parameters with each (and half) for the state, the rest in turn; some of the
/// parameters that are not on the device by half.
std::vector<Variant> covering_variants() {
  std::vector<Variant> list;
  int number = 0;
  for (const config::Placement parameters :
       {config::Placement::none, config::Placement::cpu, config::Placement::nvme}) {
    for (const config::Placement state :
         {config::Placement::none, config::Placement::cpu, config::Placement::nvme,
          config::Placement::nvme, config::Placement::cpu}) {
      const bool half = list.size() % 5 > 2;
      Variant variant{parameters, state, half ? 0.5 : 1.0};
      variant.order = number % 2 == 0 ? config::MicroBatchOrder::unit_major
                                      : config::MicroBatchOrder::batch_major;
      variant.recompute = number % 4 < 2;
      variant.prefetch = 1 + number % 3;
      variant.chunk = number % 5 == 1 ? 1 << 16 : 2048 * (1 + number % 3);
      variant.slots = number % 3 == 2 ? 1 : 0;
      variant.parameters_ratio = number % 4 == 3 ? 0.5 : 1;
      place_activations(variant, number / 2);
      list.push_back(variant);
      number += 1;
    }
  }
  return list;
}

class EqualityTest : public TrainingTest {
 protected:
  /// Losses, norms, rates and the final weights, which must be the reference run's to the bit. A
  /// sanitizer's build runs every third variant from number `first` on.
  void expect_equal_for_all(config::Settings base, int first) {
    base.data.validation_fraction = 0.2;
    base.cadence.eval_steps = 3;
    base.output.folder = folder_ / "reference";
    const std::vector<Row> reference = run(base);
    ASSERT_EQ(reference.size(), 6U);
    EXPECT_LT(reference.back().loss, reference.front().loss);
    const std::string weights = read(folder_ / "reference" / "model.safetensors");
    int number = 0;
    for (const Variant& variant : covering_variants()) {
      SCOPED_TRACE(describe(variant));
      const std::string name = std::to_string(number++);
      if (kSanitized && number % 3 != first % 3) continue;
      config::Settings settings = with(base, variant);
      settings.output.folder = folder_ / name;
      ASSERT_THAT(run(settings), ElementsAreArray(reference));
      ASSERT_TRUE(read(folder_ / name / "model.safetensors") == weights) << "other weights";
    }
  }
};

TEST_F(EqualityTest, fp32_with_accumulation_and_clipping) {
  config::Settings base = settings("");
  base.batch.accumulation = 4;
  expect_equal_for_all(base, 0);
}

TEST_F(EqualityTest, fp32_without_accumulation_and_clipping) {
  config::Settings base = settings("");
  base.batch.accumulation = 1;
  base.optimizer.max_grad_norm = 0;
  expect_equal_for_all(base, 1);
}

TEST_F(EqualityTest, bf16_with_accumulation) {
  config::Settings base = settings("");
  base.numerics.dtype = DType::bf16;
  base.batch.accumulation = 4;
  base.optimizer.max_grad_norm = 0;
  expect_equal_for_all(base, 2);
}

TEST_F(EqualityTest, bf16_with_clipping) {
  config::Settings base = settings("");
  base.numerics.dtype = DType::bf16;
  base.batch.accumulation = 1;
  base.optimizer.max_grad_norm = 0.5;
  expect_equal_for_all(base, 3);
}

TEST_F(EqualityTest, bf16_split_state) {
  config::Settings base = settings("");
  base.numerics.dtype = DType::bf16;
  base.optimizer.state.master = optim::MasterFormat::split;
  base.optimizer.max_grad_norm = 0;
  expect_equal_for_all(base, 4);
}

// Their rounding is random, by a number's place in the model and not in a chunk.
TEST_F(EqualityTest, bf16_moments) {
  config::Settings base = settings("");
  base.optimizer.state.moments = DType::bf16;
  base.batch.accumulation = 1;
  expect_equal_for_all(base, 5);
}

TEST_F(EqualityTest, adam_with_l2_adagrad_and_lion) {
  for (const auto type :
       {optim::OptimizerType::adam, optim::OptimizerType::adagrad, optim::OptimizerType::lion}) {
    const std::string name(optim::name_of(type));
    SCOPED_TRACE(name);
    config::Settings resident = settings(name);
    resident.optimizer.type = type;
    if (type == optim::OptimizerType::adam) resident.optimizer.adam_w_mode = false;
    const std::vector<Row> reference = run(resident);
    ASSERT_EQ(reference.size(), 6U);
    EXPECT_NE(reference.back().loss, reference.front().loss);
    const Variant on_disk{
        .parameters = config::Placement::nvme, .state = config::Placement::nvme, .ratio = 0.5};
    config::Settings streamed = with(resident, on_disk);
    streamed.output.folder = folder_ / (name + " on disk");
    EXPECT_THAT(run(streamed), ElementsAreArray(reference));
  }
}

TEST_F(EqualityTest, the_split_format_gives_the_losses_of_fp32_state) {
  config::Settings whole = settings("whole");
  whole.numerics.dtype = DType::bf16;
  config::Settings split = settings("split");
  split.numerics.dtype = DType::bf16;
  split.optimizer.state.master = optim::MasterFormat::split;
  EXPECT_THAT(run(split), ElementsAreArray(run(whole)));
}

TEST_F(EqualityTest, gradients_in_fp32_beside_bf16_parameters) {
  config::Settings base = settings("");
  base.numerics.dtype = DType::bf16;
  base.numerics.gradient_dtype = DType::f32;
  base.batch.accumulation = 2;
  expect_equal_for_all(base, 6);
}

TEST_F(EqualityTest, clipping_and_the_seed_do_change_the_result) {
  const std::vector<Row> reference = run(settings("reference"));
  config::Settings unclipped = settings("unclipped");
  unclipped.optimizer.max_grad_norm = 0;
  EXPECT_NE(run(unclipped), reference) << "the runs can tell a difference";
  config::Settings seeded = settings("seeded");
  seeded.numerics.seed = 43;
  EXPECT_NE(run(seeded), reference);
}

TEST_F(EqualityTest, reads_and_writes_that_take_turns) {
  for (const double max_grad_norm : {1.0, 0.0}) {  // without clipping, updates run under backward
    SCOPED_TRACE(max_grad_norm);
    config::Settings mixed = settings(fmt::format("mixed {}", max_grad_norm));
    mixed.optimizer.max_grad_norm = max_grad_norm;
    config::Settings apart =
        with(mixed, {.parameters = config::Placement::nvme, .state = config::Placement::nvme});
    apart.output.folder = folder_ / fmt::format("apart {}", max_grad_norm);
    apart.placement.disk_phases = io::Phases::apart;
    EXPECT_THAT(run(apart), ElementsAreArray(run(mixed)));
  }
}

TEST_F(EqualityTest, a_run_repeated_is_the_same_run) {
  EXPECT_THAT(run(settings("one")), ElementsAreArray(run(settings("two"))));
}

/// An untied head, whose flat is its own.
class UntiedEqualityTest : public TrainingTest {
 protected:
  UntiedEqualityTest() : TrainingTest(false) {}
};

TEST_F(UntiedEqualityTest, fp32_over_the_tiers) {
  const std::vector<Row> reference = run(settings("reference"));
  int number = 0;
  for (const Variant& variant : covering_variants()) {
    if (number++ % 3 != 0) continue;
    SCOPED_TRACE(describe(variant));
    config::Settings settings = with(this->settings(std::to_string(number)), variant);
    ASSERT_THAT(run(settings), ElementsAreArray(reference));
  }
}

}  // namespace
}  // namespace terrace::train::testing
