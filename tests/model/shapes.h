#pragma once

#include "terrace/model/config.h"

namespace terrace::model {

/// Small shapes with nothing round about them: grouped heads, a query width other than the hidden
/// size, odd sizes.
inline Config awkward_llama(bool tied) {
  Config config;
  config.architecture = Architecture::llama;
  config.vocab_size = 53;
  config.hidden_size = 18;
  config.intermediate_size = 37;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 3;
  config.head_dim = 6;
  config.max_position_embeddings = 64;
  config.rope_theta = 100;
  config.tie_word_embeddings = tied;
  return config;
}

inline Config awkward_gpt2(bool tied) {
  Config config = awkward_llama(tied);
  config.architecture = Architecture::gpt2;
  config.hidden_size = 21;
  config.intermediate_size = 45;
  config.num_attention_heads = 3;
  config.num_key_value_heads = 3;
  config.head_dim = 7;
  config.max_position_embeddings = 19;
  return config;
}

}  // namespace terrace::model
