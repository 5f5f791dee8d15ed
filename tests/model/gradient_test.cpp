#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "compare.h"
#include "reference_model.h"
#include "rig.h"
#include "shapes.h"

// Whole models against the double-precision reference.
//
// Tolerance. A gradient stands at the end of about 2 (10 L + 4) = 48 stages (L = 2 blocks):
// products, norms, softmax and pointwise functions, forward and back. A stage rounds with a
// relative error u of its result's length: in bf16, where each result is stored once, u = 2^-9; in
// f32, where a sum of K <= 64 terms is rounded as often, u = sqrt(64) 2^-24. Independent errors add
// in quadrature: sqrt(48) u. Where a sum is smaller than its terms the relative error grows; a
// factor of 4 is left for that. So 1.3e-5 in f32 and 5.4e-2 in bf16, of the length of the tensor's
// gradient. A gradient that cancels altogether (queries and keys of a single token) has errors of
// its terms' size: a tensor counts as at least a tenth of the longest.

namespace terrace::model {
namespace {

constexpr double kStages = 48;
constexpr double kCancellation = 4;

double tolerance_of(DType dtype) {
  const double u = dtype == DType::bf16 ? std::ldexp(1, -9) : 8 * std::ldexp(1, -24);
  return kCancellation * std::sqrt(kStages) * u;
}

void expect_matches_reference(const Config& config, DType dtype, BatchShape shape,
                              Rig::Placement placement) {
  SCOPED_TRACE(::testing::Message()
               << shape.rows << " x " << shape.sequence << " in " << name_of(dtype)
               << (config.tie_word_embeddings ? ", tied" : "")
               << (placement == Rig::Placement::apart ? "" : ", end to end"));
  const double tolerance = tolerance_of(dtype);
  Rig rig(config, dtype, shape, 1, placement);
  rig.randomize(11);
  const HostBatch batch = random_batch(shape, config.vocab_size, 5);
  const reference::LossAndGradients expected =
      reference::differentiate(config, rig.named_weights(), batch.tokens, batch.targets);
  const double loss = rig.step(batch);
  EXPECT_NEAR(loss, expected.loss, tolerance * expected.loss);

  double longest = 0;
  for (const auto& [name, gradient] : expected.gradients) {
    longest = std::max(longest, norm_of(gradient));
  }
  const std::vector<std::vector<float>> gradients = rig.gradients();
  ASSERT_EQ(gradients.size(), expected.gradients.size());
  double worst = 0;
  for (std::size_t p = 0; p < gradients.size(); ++p) {
    const std::string& name = rig.model().parameters()[p].name;
    const std::vector<double>& reference = expected.gradients.at(name);
    const double length = std::max(norm_of(reference), 0.1 * longest);
    const double error = distance(gradients[p], reference) / length;
    EXPECT_LE(error, tolerance) << name;
    worst = std::max(worst, error);
  }
  ::testing::Test::RecordProperty("worst_relative_error", std::to_string(worst));
}

void expect_matches_in_all_shapes(const Config& config, DType dtype) {
  for (const auto placement : {Rig::Placement::apart, Rig::Placement::end_to_end}) {
    expect_matches_reference(config, dtype, {2, 9}, placement);
    expect_matches_reference(config, dtype, {1, 17}, placement);
    expect_matches_reference(config, dtype, {3, 1}, placement);
  }
}

TEST(Gradient, llama_matches_the_reference_in_f32) {
  for (const bool tied : {false, true}) {
    expect_matches_in_all_shapes(awkward_llama(tied), DType::f32);
  }
}

TEST(Gradient, llama_matches_the_reference_in_bf16) {
  for (const bool tied : {false, true}) {
    expect_matches_in_all_shapes(awkward_llama(tied), DType::bf16);
  }
}

TEST(Gradient, gpt2_matches_the_reference_in_f32) {
  for (const bool tied : {false, true}) {
    expect_matches_in_all_shapes(awkward_gpt2(tied), DType::f32);
  }
}

TEST(Gradient, gpt2_matches_the_reference_in_bf16) {
  for (const bool tied : {false, true}) {
    expect_matches_in_all_shapes(awkward_gpt2(tied), DType::bf16);
  }
}

TEST(Gradient, logits_of_chosen_positions_match_the_reference) {
  for (const Config& config : {awkward_llama(false), awkward_gpt2(true)}) {
    const BatchShape shape{3, 8};
    Rig rig(config, DType::f32, shape);
    rig.randomize(3);
    const HostBatch batch = random_batch(shape, config.vocab_size, 4);
    const auto weights = rig.named_weights();
    const reference::ReferenceModel<double> reference(config, weights);
    // As many as there are rows, and fewer.
    for (const std::vector<std::int32_t>& positions :
         {std::vector<std::int32_t>{7, 10, 23}, std::vector<std::int32_t>{20, 0}}) {
      const auto logits = rig.logits(batch, positions);
      for (std::size_t i = 0; i < positions.size(); ++i) {
        const auto position = static_cast<std::size_t>(positions[i]);
        const auto expected = reference.logits(batch.tokens[position / 8])[position % 8];
        EXPECT_LE(distance(logits[i], expected), tolerance_of(DType::f32) * norm_of(expected));
      }
    }
  }
}

}  // namespace
}  // namespace terrace::model
