#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/core/random.h"

// What the checkpoint layer's tests share: a small model, its state as a function of the element,
// and a sink that keeps what it is given.

namespace terrace::checkpoint::testing {

inline model::Config small_config(bool tied = false) {
  model::Config config;
  config.architecture = model::Architecture::llama;
  config.vocab_size = 32;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 4;
  config.max_position_embeddings = 64;
  config.norm_eps = 1e-6;
  config.tie_word_embeddings = tied;
  return config;
}

/// The parameters of `small_config`, by hand: the model's own list is not this layer's business.
inline std::vector<TensorShape> small_tensors(bool tied = false) {
  std::vector<TensorShape> tensors = {{"model.embed_tokens.weight", {32, 8}}};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    tensors.push_back({layer + "input_layernorm.weight", {8}});
    tensors.push_back({layer + "self_attn.q_proj.weight", {8, 8}});
    tensors.push_back({layer + "self_attn.k_proj.weight", {4, 8}});
    tensors.push_back({layer + "self_attn.v_proj.weight", {4, 8}});
    tensors.push_back({layer + "self_attn.o_proj.weight", {8, 8}});
    tensors.push_back({layer + "post_attention_layernorm.weight", {8}});
    tensors.push_back({layer + "mlp.gate_proj.weight", {12, 8}});
    tensors.push_back({layer + "mlp.up_proj.weight", {12, 8}});
    tensors.push_back({layer + "mlp.down_proj.weight", {8, 12}});
  }
  tensors.push_back({"model.norm.weight", {8}});
  if (!tied) tensors.push_back({"lm_head.weight", {32, 8}});
  return tensors;
}

/// State that is a pure function of (seed, kind, tensor, element): finite in any type.
class FunctionSource : public StateSource {
 public:
  explicit FunctionSource(std::uint64_t seed) : seed_(seed) {}

  [[nodiscard]] float value(StateKind kind, const std::string& tensor, std::int64_t element) const {
    const std::uint64_t stream =
        std::hash<std::string>{}(tensor)*8 + static_cast<std::uint64_t>(kind);
    const RandomStream random(seed_, stream);
    const auto bits = static_cast<std::uint32_t>(random.bits(static_cast<std::uint64_t>(element)));
    return std::bit_cast<float>((bits & 0x807fffffU) | ((100 + bits % 42) << 23));
  }

  void read(StateKind kind, const std::string& tensor, std::int64_t first,
            std::span<float> values) override {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = value(kind, tensor, first + static_cast<std::int64_t>(i));
    }
  }

 private:
  std::uint64_t seed_;
};

class KeepingSink : public StateSink {
 public:
  void write(StateKind kind, const std::string& tensor, std::int64_t first,
             std::span<const float> values) override {
    std::vector<float>& kept = state_[{kind, tensor}];
    ASSERT_EQ(static_cast<std::int64_t>(kept.size()), first) << tensor;
    kept.insert(kept.end(), values.begin(), values.end());
  }

  /// Checks that all that the tensors have, and nothing else, has come, to the bit.
  void expect_equal(const FunctionSource& source, std::span<const TensorShape> tensors) const {
    EXPECT_EQ(state_.size(), 3 * tensors.size());
    for (const StateKind kind : {StateKind::master, StateKind::exp_avg, StateKind::exp_avg_sq}) {
      for (const TensorShape& tensor : tensors) {
        const auto found = state_.find({kind, tensor.name});
        ASSERT_NE(found, state_.end()) << tensor.name;
        ASSERT_EQ(static_cast<std::int64_t>(found->second.size()), tensor.elements());
        for (std::size_t i = 0; i < found->second.size(); ++i) {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(found->second[i]),
                    std::bit_cast<std::uint32_t>(
                        source.value(kind, tensor.name, static_cast<std::int64_t>(i))))
              << terrace::name_of(kind) << " of " << tensor.name << ", element " << i;
        }
      }
    }
  }

 private:
  std::map<std::pair<StateKind, std::string>, std::vector<float>> state_;
};

inline TrainerState small_trainer(std::int64_t step) {
  TrainerState state;
  state.global_step = step;
  state.epoch = 0.1 * static_cast<double>(step);
  state.adam_step = step - 1;
  state.skipped_steps = 1;
  state.tokens_seen = 512 * step;
  state.max_steps = 100;
  state.num_train_epochs = 3;
  state.loader = {.samples = 100 + 4 * step, .sequences = 100, .length = 16, .seed = 42};
  state.loss_scale = {.scale = 65536, .good_steps = 7, .hysteresis_left = 2};
  state.identity.model = fingerprint_of(small_config());
  state.identity.seed = 0xfedcba9876543210ULL;
  state.identity.tokenizer = {{"tokenizer.json", {12, 0xabcdef0123456789ULL}}};
  state.identity.data.files = {{"data/a.txt", {1000, 77}}, {"data/b.txt", {2000, 78}}};
  state.versions = {{"terrace", "0.1.0"}, {"onednn", "2.6"}};
  state.numerics = {{"learning_rate", "5e-05"}, {"seed", "42"}};
  state.log_history = {{.step = 1, .epoch = 0.1, .values = {{"loss", 5.25}, {"grad_norm", 0.1}}}};
  return state;
}

inline CheckpointContents small_contents(std::int64_t step, DType dtype = DType::bf16) {
  CheckpointContents contents;
  contents.model.config = small_config();
  contents.model.dtype = dtype;
  contents.model.files = {{"tokenizer.json", "{\"a\": 1}"}};
  contents.tensors = small_tensors();
  contents.trainer = small_trainer(step);
  return contents;
}

}  // namespace terrace::checkpoint::testing
