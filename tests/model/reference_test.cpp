#include <gtest/gtest.h>

#include <cmath>

#include "reference_model.h"
#include "shapes.h"
#include "terrace/core/random.h"

// Checks the reference itself: the gradient of the tape against differences of the loss.

namespace terrace::model::reference {
namespace {

using Weights = std::map<std::string, std::vector<double>>;

const std::vector<std::int32_t> kTokens = {3, 1, 4, 1, 5};
const std::vector<std::int32_t> kTargets = {1, -1, 1, 5, 2};

void fill(Weights& weights, const std::string& name, std::int64_t count, double centre) {
  const RandomStream random(7, weights.size());
  for (std::int64_t i = 0; i < count; ++i) {
    weights[name].push_back(centre + 0.3 * random.normal(static_cast<std::uint64_t>(i)));
  }
}

Weights llama_weights(const Config& c) {
  const std::int64_t q = c.num_attention_heads * c.head_dim;
  const std::int64_t kv = c.num_key_value_heads * c.head_dim;
  Weights weights;
  fill(weights, "model.embed_tokens.weight", c.vocab_size * c.hidden_size, 0);
  for (std::int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    fill(weights, prefix + "input_layernorm.weight", c.hidden_size, 1);
    fill(weights, prefix + "self_attn.q_proj.weight", q * c.hidden_size, 0);
    fill(weights, prefix + "self_attn.k_proj.weight", kv * c.hidden_size, 0);
    fill(weights, prefix + "self_attn.v_proj.weight", kv * c.hidden_size, 0);
    fill(weights, prefix + "self_attn.o_proj.weight", c.hidden_size * q, 0);
    fill(weights, prefix + "post_attention_layernorm.weight", c.hidden_size, 1);
    fill(weights, prefix + "mlp.gate_proj.weight", c.intermediate_size * c.hidden_size, 0);
    fill(weights, prefix + "mlp.up_proj.weight", c.intermediate_size * c.hidden_size, 0);
    fill(weights, prefix + "mlp.down_proj.weight", c.hidden_size * c.intermediate_size, 0);
  }
  fill(weights, "model.norm.weight", c.hidden_size, 1);
  if (!c.tie_word_embeddings) fill(weights, "lm_head.weight", c.vocab_size * c.hidden_size, 0);
  return weights;
}

Weights gpt2_weights(const Config& c) {
  Weights weights;
  fill(weights, "transformer.wte.weight", c.vocab_size * c.hidden_size, 0);
  fill(weights, "transformer.wpe.weight", c.max_position_embeddings * c.hidden_size, 0);
  for (std::int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    const std::string prefix = "transformer.h." + std::to_string(layer) + ".";
    for (const char* norm : {"ln_1", "ln_2"}) {
      fill(weights, prefix + norm + ".weight", c.hidden_size, 1);
      fill(weights, prefix + norm + ".bias", c.hidden_size, 0);
    }
    const auto conv1d = [&](const char* name, std::int64_t inputs, std::int64_t outputs) {
      fill(weights, prefix + name + ".weight", inputs * outputs, 0);
      fill(weights, prefix + name + ".bias", outputs, 0);
    };
    conv1d("attn.c_attn", c.hidden_size, 3 * c.hidden_size);
    conv1d("attn.c_proj", c.hidden_size, c.hidden_size);
    conv1d("mlp.c_fc", c.hidden_size, c.intermediate_size);
    conv1d("mlp.c_proj", c.intermediate_size, c.hidden_size);
  }
  fill(weights, "transformer.ln_f.weight", c.hidden_size, 1);
  fill(weights, "transformer.ln_f.bias", c.hidden_size, 0);
  if (!c.tie_word_embeddings) fill(weights, "lm_head.weight", c.vocab_size * c.hidden_size, 0);
  return weights;
}

/// Every third element of every weight. A central difference over 2 h has a truncation error of
/// h^2 |f'''| / 6 and a rounding error of about eps |f| / h; with h = 1e-5 and losses and third
/// derivatives of order 10 both stay below 1e-9 and are given a factor of 100.
void expect_gradient_matches_differences(const Config& config, Weights weights) {
  constexpr double kStep = 1e-5;
  constexpr double kTolerance = 1e-7;
  const LossAndGradients exact = differentiate(config, weights, {kTokens}, {kTargets});
  const auto loss = [&] { return ReferenceModel<double>(config, weights).loss(kTokens, kTargets); };
  EXPECT_DOUBLE_EQ(exact.loss, loss());
  for (auto& [name, values] : weights) {
    double worst = 0;
    for (std::size_t i = 0; i < values.size(); i += 3) {
      const double value = values[i];
      values[i] = value + kStep;
      const double above = loss();
      values[i] = value - kStep;
      const double below = loss();
      values[i] = value;
      const double difference = (above - below) / (2 * kStep);
      worst = std::max(worst, std::abs(difference - exact.gradients.at(name)[i]));
    }
    EXPECT_LT(worst, kTolerance) << name;
  }
}

Config small(Config config, std::int64_t hidden) {
  config.vocab_size = 7;
  config.hidden_size = hidden;
  config.intermediate_size = 9;
  config.max_position_embeddings = 6;
  return config;
}

TEST(Reference, llama_gradient_matches_finite_differences) {
  for (const bool tied : {false, true}) {
    const Config config = small(awkward_llama(tied), 8);
    expect_gradient_matches_differences(config, llama_weights(config));
  }
}

TEST(Reference, gpt2_gradient_matches_finite_differences) {
  for (const bool tied : {false, true}) {
    Config config = small(awkward_gpt2(tied), 9);
    config.head_dim = 3;
    expect_gradient_matches_differences(config, gpt2_weights(config));
  }
}

}  // namespace
}  // namespace terrace::model::reference
