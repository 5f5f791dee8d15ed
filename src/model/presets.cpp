#include <fmt/core.h>

#include <algorithm>

#include "parameters.h"
#include "terrace/core/edit_distance.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/model/config.h"

namespace terrace::model {
namespace {

constexpr std::int64_t kBytesVocabulary = 256;

/// What distinguishes one Llama from the next.
struct LlamaShape {
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, intermediate = 0;
  std::int64_t vocabulary = 32000, positions = 2048;
  double theta = 10000;
};

Config llama(const LlamaShape& shape) {
  Config config;
  config.architecture = Architecture::llama;
  config.vocab_size = shape.vocabulary;
  config.hidden_size = shape.hidden;
  config.intermediate_size = shape.intermediate;
  config.num_hidden_layers = shape.layers;
  config.num_attention_heads = shape.heads;
  config.num_key_value_heads = shape.kv_heads;
  config.head_dim = shape.hidden / shape.heads;
  config.max_position_embeddings = shape.positions;
  config.rope_theta = shape.theta;
  return config;
}

Config bytes_llama(LlamaShape shape) {
  shape.vocabulary = kBytesVocabulary;
  return llama(shape);
}

/// Llama 3's vocabulary and positions.
Config llama3(LlamaShape shape) {
  shape.vocabulary = 128256;
  shape.positions = 8192;
  shape.theta = 500000;
  return llama(shape);
}

Config gpt2(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  Config config;
  config.architecture = Architecture::gpt2;
  config.vocab_size = 50257;
  config.hidden_size = hidden;
  config.intermediate_size = 4 * hidden;
  config.num_hidden_layers = layers;
  config.num_attention_heads = heads;
  config.num_key_value_heads = heads;
  config.head_dim = hidden / heads;
  config.max_position_embeddings = 1024;
  config.tie_word_embeddings = true;
  return config;
}

Preset make(std::string name, const Config& config, double learning_rate) {
  validate(config, name);
  std::uint64_t elements = 0;
  for (const ParameterSpec& parameter : take_inventory(config).parameters) {
    elements += static_cast<std::uint64_t>(parameter.elements());
  }
  const char* architecture = config.architecture == Architecture::gpt2 ? "gpt2" : "llama";
  const std::string vocabulary = config.vocab_size == kBytesVocabulary
                                     ? std::string("bytes")
                                     : fmt::format("{} tokens", config.vocab_size);
  return {std::move(name),
          fmt::format("{} parameters, {}, {}", format_count(elements), architecture, vocabulary),
          config, learning_rate};
}

/// Shapes are those of the published models of the same name (the bytes models are ours). Learning
/// rates are those their authors trained with, or their neighbours in size did.
std::vector<Preset> make_presets() {
  return {
      make("tiny",
           bytes_llama({.layers = 5,
                        .hidden = 128,
                        .heads = 4,
                        .kv_heads = 2,
                        .intermediate = 384,
                        .positions = 1024}),
           3e-3),
      make("mini",
           bytes_llama({.layers = 6,
                        .hidden = 256,
                        .heads = 4,
                        .kv_heads = 4,
                        .intermediate = 640,
                        .positions = 1024}),
           2e-3),
      make("small",
           bytes_llama({.layers = 6,
                        .hidden = 384,
                        .heads = 6,
                        .kv_heads = 6,
                        .intermediate = 1024,
                        .positions = 1024}),
           1.5e-3),
      make("gpt2-124m", gpt2(12, 768, 12), 6e-4),
      make("llama-160m",
           llama({.layers = 12, .hidden = 768, .heads = 12, .kv_heads = 12, .intermediate = 3072}),
           6e-4),
      make("gpt2-medium", gpt2(24, 1024, 16), 3e-4),
      make("gpt2-large", gpt2(36, 1280, 20), 2.5e-4),
      make("llama-1b",
           llama({.layers = 22, .hidden = 2048, .heads = 32, .kv_heads = 4, .intermediate = 5632}),
           4e-4),
      make("gpt2-xl", gpt2(48, 1600, 25), 2e-4),
      make("llama-7b",
           llama({.layers = 32,
                  .hidden = 4096,
                  .heads = 32,
                  .kv_heads = 32,
                  .intermediate = 11008,
                  .positions = 4096}),
           3e-4),
      make(
          "llama-8b",
          llama3({.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .intermediate = 14336}),
          3e-4),
      make("llama-13b",
           llama({.layers = 40,
                  .hidden = 5120,
                  .heads = 40,
                  .kv_heads = 40,
                  .intermediate = 13824,
                  .positions = 4096}),
           3e-4),
      make(
          "llama-70b",
          llama3({.layers = 80, .hidden = 8192, .heads = 64, .kv_heads = 8, .intermediate = 28672}),
          1.5e-4),
  };
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = make_presets();  // immutable once made
  return all;
}

const Preset& preset(std::string_view name) {
  std::vector<const Preset*> nearest;
  for (const Preset& candidate : presets()) {
    if (candidate.name == name) return candidate;
    nearest.push_back(&candidate);
  }
  std::stable_sort(nearest.begin(), nearest.end(), [&](const Preset* a, const Preset* b) {
    return edit_distance(name, a->name) < edit_distance(name, b->name);
  });
  std::string names;
  for (const Preset* candidate : nearest) {
    names += (names.empty() ? "" : ", ") + candidate->name;
  }
  fail(ErrorKind::usage, "there is no preset named \"{}\"; the presets, the nearest first, are {}",
       name, names);
}

}  // namespace terrace::model
