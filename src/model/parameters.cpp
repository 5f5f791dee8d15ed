#include "parameters.h"

#include <fmt/core.h>

#include <cmath>
#include <utility>

namespace terrace::model {
namespace {

class Builder {
 public:
  void begin(UnitKind kind, std::string name) {
    inventory_.units.push_back({kind, std::move(name), {}});
  }
  int matrix(std::string name, std::int64_t rows, std::int64_t columns, double initial_std) {
    return add(
        {std::move(name), {rows, columns}, true, Initial::normal, static_cast<float>(initial_std)});
  }
  void vector(std::string name, std::int64_t elements, Initial initial) {
    add({std::move(name), {elements}, false, initial, 0});
  }
  void use(int parameter) { inventory_.units.back().parameters.push_back(parameter); }
  Inventory finish() { return std::move(inventory_); }

 private:
  int add(ParameterSpec spec) {
    const int index = static_cast<int>(inventory_.parameters.size());
    inventory_.parameters.push_back(std::move(spec));
    use(index);
    return index;
  }

  Inventory inventory_;
};

/// Products that add to the residual stream start smaller, so that its variance does not grow with
/// depth. Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2.3.
double residual_std(const Config& config) {
  return config.initializer_range / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
}

void add_llama_block(Builder& builder, const Config& config, const std::string& prefix) {
  const std::int64_t c = config.hidden_size, f = config.intermediate_size;
  const std::int64_t q = config.num_attention_heads * config.head_dim;
  const std::int64_t kv = config.num_key_value_heads * config.head_dim;
  const double std = config.initializer_range, last_std = residual_std(config);
  builder.vector(prefix + "input_layernorm.weight", c, Initial::ones);
  builder.matrix(prefix + "self_attn.q_proj.weight", q, c, std);
  builder.matrix(prefix + "self_attn.k_proj.weight", kv, c, std);
  builder.matrix(prefix + "self_attn.v_proj.weight", kv, c, std);
  builder.matrix(prefix + "self_attn.o_proj.weight", c, q, last_std);
  builder.vector(prefix + "post_attention_layernorm.weight", c, Initial::ones);
  builder.matrix(prefix + "mlp.gate_proj.weight", f, c, std);
  builder.matrix(prefix + "mlp.up_proj.weight", f, c, std);
  builder.matrix(prefix + "mlp.down_proj.weight", c, f, last_std);
}

void add_gpt2_block(Builder& builder, const Config& config, const std::string& prefix) {
  const std::int64_t c = config.hidden_size, f = config.intermediate_size;
  const double std = config.initializer_range, last_std = residual_std(config);
  builder.vector(prefix + "ln_1.weight", c, Initial::ones);
  builder.vector(prefix + "ln_1.bias", c, Initial::zeros);
  builder.matrix(prefix + "attn.c_attn.weight", c, 3 * c, std);
  builder.vector(prefix + "attn.c_attn.bias", 3 * c, Initial::zeros);
  builder.matrix(prefix + "attn.c_proj.weight", c, c, last_std);
  builder.vector(prefix + "attn.c_proj.bias", c, Initial::zeros);
  builder.vector(prefix + "ln_2.weight", c, Initial::ones);
  builder.vector(prefix + "ln_2.bias", c, Initial::zeros);
  builder.matrix(prefix + "mlp.c_fc.weight", c, f, std);
  builder.vector(prefix + "mlp.c_fc.bias", f, Initial::zeros);
  builder.matrix(prefix + "mlp.c_proj.weight", f, c, last_std);
  builder.vector(prefix + "mlp.c_proj.bias", c, Initial::zeros);
}

}  // namespace

Inventory take_inventory(const Config& config) {
  const bool gpt2 = config.architecture == Architecture::gpt2;
  const std::int64_t c = config.hidden_size;
  Builder builder;
  builder.begin(UnitKind::embedding, "embedding");
  const int table = builder.matrix(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight",
                                   config.vocab_size, c, config.initializer_range);
  if (gpt2) {
    builder.matrix("transformer.wpe.weight", config.max_position_embeddings, c,
                   config.initializer_range);
  }
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    builder.begin(UnitKind::block, fmt::format("block {}", layer));
    if (gpt2) {
      add_gpt2_block(builder, config, fmt::format("transformer.h.{}.", layer));
    } else {
      add_llama_block(builder, config, fmt::format("model.layers.{}.", layer));
    }
  }
  builder.begin(UnitKind::head, "head");
  builder.vector(gpt2 ? "transformer.ln_f.weight" : "model.norm.weight", c, Initial::ones);
  if (gpt2) builder.vector("transformer.ln_f.bias", c, Initial::zeros);
  if (config.tie_word_embeddings) {
    builder.use(table);
  } else {
    builder.matrix("lm_head.weight", config.vocab_size, c, config.initializer_range);
  }
  return builder.finish();
}

}  // namespace terrace::model
