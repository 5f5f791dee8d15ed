#include "terrace/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "compare.h"
#include "rig.h"
#include "shapes.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::model {
namespace {

using ::testing::HasSubstr;

constexpr BatchShape kShape{2, 9};

/// FP32 sums of the same few dozen terms in another order, relative to the length of the sum.
constexpr double kReordered = 2e-6;

struct Case {
  std::string name;
  Config config;
  DType dtype;
};

class EveryModel : public ::testing::TestWithParam<Case> {
 protected:
  static Rig make(int threads = 1) { return make(kShape, threads); }
  static Rig make(BatchShape shape, int threads) {
    return {GetParam().config, GetParam().dtype, shape, threads};
  }
  static HostBatch batch(std::uint64_t seed = 5) {
    return random_batch(kShape, GetParam().config.vocab_size, seed);
  }
};

INSTANTIATE_TEST_SUITE_P(, EveryModel,
                         ::testing::Values(Case{"llama_f32", awkward_llama(false), DType::f32},
                                           Case{"llama_bf16_tied", awkward_llama(true),
                                                DType::bf16},
                                           Case{"gpt2_f32_tied", awkward_gpt2(true), DType::f32},
                                           Case{"gpt2_bf16", awkward_gpt2(false), DType::bf16}),
                         [](const auto& test) { return test.param.name; });

TEST_P(EveryModel, recomputed_activations_give_the_same_bits) {
  Rig rig = make();
  rig.randomize(1);
  const double kept_loss = rig.step(batch());
  const auto kept = rig.gradients();
  EXPECT_EQ(rig.step(batch(), {.recompute = true}), kept_loss);
  EXPECT_EQ(rig.gradients(), kept);
}

TEST_P(EveryModel, loss_alone_is_the_loss_of_a_step) {
  Rig rig = make();
  rig.randomize(1);
  const double loss = rig.loss(batch());
  EXPECT_GT(loss, 0);
  EXPECT_EQ(rig.step(batch()), loss);
}

TEST_P(EveryModel, two_threads_give_the_bits_of_one) {
  Rig one = make(1), two = make(2);
  one.randomize(1);
  two.randomize(1);
  EXPECT_EQ(one.step(batch()), two.step(batch()));
  EXPECT_EQ(one.gradients(), two.gradients());
}

TEST_P(EveryModel, micro_batches_accumulate_to_the_whole_batch) {
  Rig whole = make(), halves = make({1, kShape.sequence}, 1);
  whole.randomize(2);
  halves.randomize(2);
  const HostBatch all = batch();
  const double loss = whole.step(all);
  double sum = halves.step({{all.tokens[0]}, {all.targets[0]}});
  sum += halves.step({{all.tokens[1]}, {all.targets[1]}}, {.accumulate = true});
  EXPECT_NEAR(sum, loss, kReordered * loss);
  for (std::size_t p = 0; p < whole.gradients().size(); ++p) {
    const std::vector<float> expected = whole.gradients()[p];
    EXPECT_LE(distance(halves.gradients()[p], expected), kReordered * norm_of(expected))
        << whole.model().parameters()[p].name;
  }
}

TEST_P(EveryModel, a_batch_without_targets_has_no_loss_and_no_gradient) {
  Rig rig = make();
  rig.randomize(1);
  HostBatch none = batch();
  for (auto& row : none.targets) row.assign(row.size(), -1);
  EXPECT_EQ(rig.step(none), 0.0);
  for (const auto& gradient : rig.gradients()) {
    EXPECT_EQ(gradient, std::vector<float>(gradient.size(), 0.0F));
  }
}

TEST_P(EveryModel, loss_scale_by_a_power_of_two_scales_gradients_exactly) {
  Rig rig = make();
  rig.randomize(1);
  const double loss = rig.step(batch());
  const auto plain = rig.gradients();
  EXPECT_EQ(rig.step(batch(), {.loss_scale = 0.25F}), loss);
  const auto scaled = rig.gradients();
  for (std::size_t p = 0; p < plain.size(); ++p) {
    std::vector<float> expected = plain[p];
    for (float& value : expected) value *= 0.25F;
    EXPECT_EQ(scaled[p], expected) << rig.model().parameters()[p].name;
  }
}

TEST_P(EveryModel, a_token_sees_no_later_one) {
  Rig rig = make();
  rig.randomize(1);
  HostBatch first = batch(), second = first;
  second.tokens[0].back() = (first.tokens[0].back() + 1) % 53;
  const auto last = static_cast<std::int32_t>(kShape.sequence) - 1;
  EXPECT_EQ(rig.logits(first, {last - 1}), rig.logits(second, {last - 1}));
  EXPECT_NE(rig.logits(first, {last}), rig.logits(second, {last}));
}

TEST_P(EveryModel, a_token_outside_the_vocabulary_fails_the_stream) {
  for (const std::int32_t token : {-1, 53}) {
    Rig rig = make();
    rig.randomize(1);
    HostBatch bad = batch();
    bad.tokens[1][3] = token;
    try {
      rig.loss(bad);
      ADD_FAILURE() << "token " << token << " passed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
    }
  }
}

void expect_tied_gradient_is_the_sum_of_both_uses(const Config& tied, const Config& untied) {
  Rig twin(untied, DType::f32, kShape), rig(tied, DType::f32, kShape);
  twin.randomize(1);
  std::vector<std::vector<float>> weights = twin.weights();
  weights.pop_back();  // lm_head, the last
  rig.set_weights(weights);
  weights.push_back(weights.front());
  twin.set_weights(weights);
  const HostBatch batch = random_batch(kShape, tied.vocab_size, 6);
  EXPECT_EQ(rig.step(batch), twin.step(batch));
  std::vector<double> sum;
  const auto gradients = twin.gradients();
  for (std::size_t i = 0; i < gradients.front().size(); ++i) {
    sum.push_back(static_cast<double>(gradients.front()[i]) +
                  static_cast<double>(gradients.back()[i]));
  }
  EXPECT_LE(distance(rig.gradients().front(), sum), kReordered * norm_of(sum));
  for (std::size_t p = 1; p + 1 < gradients.size(); ++p) {
    EXPECT_EQ(rig.gradients()[p], gradients[p]) << rig.model().parameters()[p].name;
  }
}

TEST(TiedWeight, its_gradient_is_the_sum_of_both_uses) {
  expect_tied_gradient_is_the_sum_of_both_uses(awkward_llama(true), awkward_llama(false));
  expect_tied_gradient_is_the_sum_of_both_uses(awkward_gpt2(true), awkward_gpt2(false));
}

TEST(TiedWeight, is_one_parameter_of_two_units) {
  Rig rig(awkward_gpt2(true), DType::f32, kShape);
  const auto units = rig.model().units();
  EXPECT_EQ(units.front().parameters.front(), 0);
  EXPECT_EQ(units.back().parameters.back(), 0);
  for (const ParameterSpec& parameter : rig.model().parameters()) {
    EXPECT_NE(parameter.name, "lm_head.weight");
  }
}

/// A vocabulary this large makes chunks of 32 tokens, so 5 x 14 tokens are three chunks and 14 are
/// one.
TEST(Head, chunks_of_tokens_do_not_change_the_result) {
  Config config = awkward_gpt2(false);
  config.vocab_size = 60001;
  config.num_hidden_layers = 1;
  const BatchShape all_rows{5, 14}, one_row{1, 14};
  Rig chunked(config, DType::f32, all_rows), single(config, DType::f32, one_row);
  chunked.randomize(1);
  single.randomize(1);
  const HostBatch batch = random_batch(all_rows, config.vocab_size, 8);
  const double loss = chunked.step(batch);
  double sum = 0;
  for (std::size_t row = 0; row < 5; ++row) {
    sum += single.step({{batch.tokens[row]}, {batch.targets[row]}}, {.accumulate = row > 0});
  }
  EXPECT_NEAR(sum, loss, kReordered * loss);
  for (std::size_t p = 0; p < chunked.gradients().size(); ++p) {
    const std::vector<float> expected = chunked.gradients()[p];
    EXPECT_LE(distance(single.gradients()[p], expected), kReordered * norm_of(expected))
        << chunked.model().parameters()[p].name;
  }
}

/// 16 bytes of logits a token and word would be 1.3 GB here.
TEST(Head, never_needs_memory_for_all_logits) {
  Config config = awkward_llama(false);
  config.vocab_size = 100000;
  Rig rig(config, DType::bf16, {1, 1});
  const int head = static_cast<int>(rig.model().units().size()) - 1;
  const UnitMemory memory = rig.model().memory(head, {4, 1000});
  EXPECT_LT(memory.backward_scratch_bytes, 64 * kMiB);
  EXPECT_LT(memory.forward_scratch_bytes, 64 * kMiB);
}

TEST(Memory, attention_does_not_grow_with_the_square_of_the_sequence) {
  Rig rig(awkward_llama(false), DType::bf16, {1, 1});
  const UnitMemory once = rig.model().memory(1, {1, 1024});
  const UnitMemory twice = rig.model().memory(1, {1, 2048});
  EXPECT_LT(twice.saved_bytes, once.saved_bytes * 21 / 10);
  EXPECT_LT(twice.forward_scratch_bytes, once.forward_scratch_bytes * 21 / 10 + kMiB);
  EXPECT_LT(twice.backward_scratch_bytes, once.backward_scratch_bytes * 21 / 10 + kMiB);
}

TEST(Shapes, a_sequence_longer_than_gpt2_has_positions_is_refused) {
  Rig rig(awkward_gpt2(true), DType::f32, kShape);
  try {
    static_cast<void>(rig.model().memory(0, {1, 20}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr("20 tokens"));
    EXPECT_THAT(error.what(), HasSubstr("n_positions (19)"));
  }
}

}  // namespace
}  // namespace terrace::model
