#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::model {

enum class Architecture { llama, gpt2 };

/// What fixes a model's mathematics. Names follow Hugging Face's `config.json`.
struct Config {
  Architecture architecture = Architecture::llama;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;  ///< equal to num_attention_heads for gpt2
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;
  double norm_eps = 1e-5;  ///< rms_norm_eps or layer_norm_epsilon
  double rope_theta = 10000;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;

  friend bool operator==(const Config&, const Config&) = default;
};

/// Refuses what cannot be computed. `source` (a file or a preset's name) is named in the message.
/// Errors: data, naming the key, what was found and what was expected: sizes that are not positive,
/// heads not divisible by key-value heads, an odd head dimension under rotary positions, ...
void validate(const Config& config, std::string_view source);

/// A shape by name, with random weights: a model to train from nothing.
struct Preset {
  std::string name;
  std::string description;  ///< "1.1M parameters, llama, bytes"
  Config config;
  double learning_rate = 0;  ///< its default when trained from nothing
};

/// All presets, smallest first.
[[nodiscard]] const std::vector<Preset>& presets();
/// Errors: usage, naming the known presets, the nearest first.
[[nodiscard]] const Preset& preset(std::string_view name);

}  // namespace terrace::model
