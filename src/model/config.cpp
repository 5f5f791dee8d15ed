#include "terrace/model/config.h"

#include <cmath>
#include <limits>

#include "terrace/core/error.h"

namespace terrace::model {
namespace {

/// The keys of `config.json`, which GPT-2 spells its own way.
struct KeyNames {
  const char* vocab_size;
  const char* hidden_size;
  const char* intermediate_size;
  const char* num_hidden_layers;
  const char* num_attention_heads;
  const char* max_position_embeddings;
  const char* norm_eps;
};

KeyNames key_names(Architecture architecture) {
  if (architecture == Architecture::gpt2) {
    return {"vocab_size", "n_embd",      "n_inner",           "n_layer",
            "n_head",     "n_positions", "layer_norm_epsilon"};
  }
  return {"vocab_size",        "hidden_size",         "intermediate_size",
          "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
          "rms_norm_eps"};
}

/// Sizes are bounded so that products of two or three of them, times a few bytes, stay in 64 bits.
constexpr std::int64_t kMostOfASize = std::int64_t{1} << 20;
constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();

void check_size(std::string_view source, const char* key, std::int64_t value, std::int64_t most) {
  require(value >= 1 && value <= most, ErrorKind::data,
          "{}: {} is {}, but must be between 1 and {}", source, key, value, most);
}

void check_positive(std::string_view source, const char* key, double value) {
  require(std::isfinite(value) && value > 0, ErrorKind::data,
          "{}: {} is {}, but must be a positive number", source, key, value);
}

void check_llama(const Config& config, std::string_view source) {
  require(config.num_attention_heads % config.num_key_value_heads == 0, ErrorKind::data,
          "{}: num_attention_heads is {}, which is not a multiple of num_key_value_heads ({}), so "
          "query heads cannot share key-value heads evenly",
          source, config.num_attention_heads, config.num_key_value_heads);
  require(config.head_dim % 2 == 0, ErrorKind::data,
          "{}: head_dim is {}, but rotary positions turn pairs of elements, so it must be even",
          source, config.head_dim);
  check_positive(source, "rope_theta", config.rope_theta);
}

void check_gpt2(const Config& config, std::string_view source) {
  require(config.num_key_value_heads == config.num_attention_heads, ErrorKind::data,
          "{}: there are {} key-value heads for n_head {}, but gpt2 has one for each head", source,
          config.num_key_value_heads, config.num_attention_heads);
  require(config.hidden_size % config.num_attention_heads == 0, ErrorKind::data,
          "{}: n_embd is {}, which is not a multiple of n_head ({})", source, config.hidden_size,
          config.num_attention_heads);
  require(config.head_dim * config.num_attention_heads == config.hidden_size, ErrorKind::data,
          "{}: the head dimension is {}, but in gpt2 it must be n_embd / n_head = {} / {}", source,
          config.head_dim, config.hidden_size, config.num_attention_heads);
}

}  // namespace

void validate(const Config& config, std::string_view source) {
  const KeyNames keys = key_names(config.architecture);
  check_size(source, keys.vocab_size, config.vocab_size, kMostTokens);
  check_size(source, keys.hidden_size, config.hidden_size, kMostOfASize);
  check_size(source, keys.intermediate_size, config.intermediate_size, kMostOfASize);
  check_size(source, keys.num_hidden_layers, config.num_hidden_layers, kMostOfASize);
  check_size(source, keys.num_attention_heads, config.num_attention_heads, kMostOfASize);
  check_size(source, "num_key_value_heads", config.num_key_value_heads, kMostOfASize);
  check_size(source, "head_dim", config.head_dim, kMostOfASize);
  check_size(source, keys.max_position_embeddings, config.max_position_embeddings, kMostTokens);
  check_positive(source, keys.norm_eps, config.norm_eps);
  require(std::isfinite(config.initializer_range) && config.initializer_range >= 0, ErrorKind::data,
          "{}: initializer_range is {}, but must be zero or a positive number", source,
          config.initializer_range);
  switch (config.architecture) {
    case Architecture::llama:
      return check_llama(config, source);
    case Architecture::gpt2:
      return check_gpt2(config, source);
  }
}

}  // namespace terrace::model
