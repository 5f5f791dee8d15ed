#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "terrace/checkpoint/training_checkpoint.h"
#include "train/training.h"

namespace terrace::train::testing {
namespace {

namespace fs = std::filesystem;

/// All values of a state kind of one tensor in a checkpoint.
std::vector<float> values_of(const fs::path& checkpoint, StateKind kind, const std::string& tensor,
                             std::size_t count) {
  checkpoint::TrainingCheckpoint saved(checkpoint);
  std::vector<float> values(count);
  saved.read(kind, tensor, 0, values);
  return values;
}

constexpr std::size_t kEmbedding = 256 * 18;
constexpr const char* kEmbeddingName = "model.embed_tokens.weight";

class NumericsTest : public TrainingTest {};

TEST_F(NumericsTest, eight_by_one_and_one_by_eight_are_the_same_step_to_rounding) {
  // Each gradient element is a sum over 128 tokens of products down a chain of 2 blocks whose
  // longest inner sum has 37 terms; a rounding error of u = 2^-24 in each of those additions, on
  // terms that may cancel to a tenth of their magnitude, moves it by no more than
  // 10 * (128 + 2 * 7 * 37) * u of the largest one. A loss is a sum over tokens in double of values
  // that came down the same chain without the sum over tokens.
  const double unit = std::ldexp(1.0, -24);
  const double gradient_bound = 10 * (128 + 2 * 7 * 37) * unit;
  const double loss_bound = 2 * 7 * 37 * unit;
  config::Settings wide = settings("8x1");
  config::Settings deep = settings("1x8");
  for (config::Settings* settings : {&wide, &deep}) {
    settings->length.max_steps = 1;
    settings->cadence.save_steps = 1;
    settings->optimizer.max_grad_norm = 0;
    // The first update is rate * g / (|g| + eps): with an eps far above the gradients it is linear
    // in them, so that the weights inherit their bound.
    settings->optimizer.epsilon = 1;
  }
  wide.batch.micro = 8;
  wide.batch.accumulation = 1;
  deep.batch.micro = 1;
  deep.batch.accumulation = 8;
  const std::vector<Row> a = run(wide);
  const std::vector<Row> b = run(deep);
  EXPECT_NEAR(a[0].loss, b[0].loss, loss_bound * a[0].loss);
  EXPECT_NEAR(a[0].grad_norm, b[0].grad_norm, gradient_bound * a[0].grad_norm);
  for (const auto& [kind, scale] :
       {std::pair(StateKind::exp_avg, 0.1), std::pair(StateKind::master, 1e-2)}) {
    const auto va = values_of(folder_ / "8x1" / "checkpoint-1", kind, kEmbeddingName, kEmbedding);
    const auto vb = values_of(folder_ / "1x8" / "checkpoint-1", kind, kEmbeddingName, kEmbedding);
    const auto gradients =
        values_of(folder_ / "8x1" / "checkpoint-1", StateKind::exp_avg, kEmbeddingName, kEmbedding);
    float largest = 0;
    for (const float value : gradients) largest = std::max(largest, std::abs(value) * 10);
    ASSERT_GT(largest, 0);
    // A master also rounds once where the weight is larger than its update.
    const double rounding = kind == StateKind::master ? unit : 0;
    for (std::size_t i = 0; i < kEmbedding; ++i) {
      ASSERT_NEAR(va[i], vb[i], scale * gradient_bound * largest + rounding)
          << name_of(kind) << " of element " << i;
    }
  }
}

TEST_F(NumericsTest, the_loss_is_the_mean_over_the_tokens_of_the_whole_batch) {
  // At the start a random model of these weights knows nothing: about ln 256 nats a byte.
  const std::vector<Row> result = run(settings("run"));
  EXPECT_NEAR(result[0].loss, std::log(256.0), 0.2);
}

TEST_F(NumericsTest, the_validation_loss_does_not_depend_on_the_micro_batch) {
  std::vector<double> losses;
  for (const int micro : {1, 2, 4}) {
    config::Settings settings = this->settings("micro " + std::to_string(micro));
    settings.batch.micro = micro;
    settings.batch.accumulation = 4 / micro;
    settings.length.max_steps = 1;
    settings.data.validation_fraction = 0.4;  // a number of sequences that 2 and 4 do not divide
    losses.push_back(run(settings)[0].eval_loss);
  }
  EXPECT_GT(losses[0], 0);
  for (const double loss : losses) EXPECT_NEAR(loss, losses[0], 1e-5 * losses[0]);
}

TEST_F(NumericsTest, a_tied_weight_has_the_sum_of_its_two_gradients_and_one_state) {
  // The same model with its head untied, both matrices equal: the gradients of the two uses apart.
  std::vector<float> embedding(kEmbedding);
  write_model(folder_ / "model", small_llama(true),
              [&](const std::string& tensor, std::int64_t first, std::span<float> values) {
                if (tensor != kEmbeddingName) return;
                std::ranges::copy(values, embedding.begin() + first);
              });
  write_model(folder_ / "untied", small_llama(false),
              [&](const std::string& tensor, std::int64_t first, std::span<float> values) {
                if (tensor != "lm_head.weight") return;
                std::copy_n(embedding.begin() + first, values.size(), values.begin());
              });
  for (const config::Placement parameters : {config::Placement::none, config::Placement::nvme}) {
    const std::string suffix = std::to_string(static_cast<int>(parameters));
    for (const std::string model : {"model", "untied"}) {
      config::Settings settings = this->settings(model + suffix);
      settings.model = folder_ / model;
      settings.placement.parameters.device = parameters;
      settings.length.max_steps = 1;
      settings.cadence.save_steps = 1;
      settings.optimizer.max_grad_norm = 0;
      (void)run(settings);
    }
    const fs::path tied = folder_ / ("model" + suffix) / "checkpoint-1";
    const fs::path untied = folder_ / ("untied" + suffix) / "checkpoint-1";
    // After one step exp_avg is (1 - beta1) times the gradient.
    const auto sum = values_of(tied, StateKind::exp_avg, kEmbeddingName, kEmbedding);
    const auto first = values_of(untied, StateKind::exp_avg, kEmbeddingName, kEmbedding);
    const auto second = values_of(untied, StateKind::exp_avg, "lm_head.weight", kEmbedding);
    int both = 0;
    for (std::size_t i = 0; i < kEmbedding; ++i) {
      // One addition in FP32, and one product by 0.1 in each: 4 roundings of 2^-24.
      const float bound = 4 * std::ldexp(1.0F, -24) * (std::abs(first[i]) + std::abs(second[i]));
      ASSERT_NEAR(sum[i], first[i] + second[i], bound) << "element " << i;
      both += first[i] != 0 && second[i] != 0 ? 1 : 0;
    }
    EXPECT_GT(both, 100);
    EXPECT_THROW((void)values_of(tied, StateKind::exp_avg, "lm_head.weight", kEmbedding),
                 std::exception)
        << "there is one state, not two";
  }
}

}  // namespace
}  // namespace terrace::train::testing
