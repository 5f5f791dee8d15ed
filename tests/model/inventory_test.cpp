#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "terrace/core/log.h"
#include "terrace/kernels/cpu.h"
#include "terrace/model/model.h"

// What a model consists of and starts from.

namespace terrace::model {
namespace {

class Inventory : public ::testing::Test {
 protected:
  Model make(const char* name) { return {preset(name).config, DType::bf16, *ops_}; }

  std::unique_ptr<kernels::Ops> ops_ = kernels::make_cpu_ops({.threads = 1});
};

std::vector<std::string> names_of(const Model& model, const UnitSpec& unit) {
  std::vector<std::string> names;
  for (const int p : unit.parameters) {
    names.push_back(model.parameters()[static_cast<std::size_t>(p)].name);
  }
  return names;
}

TEST_F(Inventory, counts_are_those_of_the_published_models) {
  EXPECT_EQ(make("gpt2-124m").parameter_count(), 124439808);
  EXPECT_EQ(make("gpt2-xl").parameter_count(), 1557611200);
  EXPECT_EQ(make("llama-1b").parameter_count(), 1100048384);
  EXPECT_EQ(make("llama-7b").parameter_count(), 6738415616);
  EXPECT_EQ(make("llama-8b").parameter_count(), 8030261248);
  EXPECT_EQ(make("llama-70b").parameter_count(), 70553706496);
}

TEST_F(Inventory, llama_units_name_parameters_as_hugging_face_does) {
  const Model model = make("tiny");
  const auto units = model.units();
  ASSERT_EQ(units.size(), 7U);
  EXPECT_EQ(units[0].name, "embedding");
  EXPECT_EQ(units[3].name, "block 2");
  EXPECT_EQ(units[6].name, "head");
  EXPECT_EQ(names_of(model, units[0]), std::vector<std::string>{"model.embed_tokens.weight"});
  EXPECT_EQ(
      names_of(model, units[3]),
      (std::vector<std::string>{
          "model.layers.2.input_layernorm.weight", "model.layers.2.self_attn.q_proj.weight",
          "model.layers.2.self_attn.k_proj.weight", "model.layers.2.self_attn.v_proj.weight",
          "model.layers.2.self_attn.o_proj.weight",
          "model.layers.2.post_attention_layernorm.weight", "model.layers.2.mlp.gate_proj.weight",
          "model.layers.2.mlp.up_proj.weight", "model.layers.2.mlp.down_proj.weight"}));
  EXPECT_EQ(names_of(model, units[6]),
            (std::vector<std::string>{"model.norm.weight", "lm_head.weight"}));
  EXPECT_EQ(model.parameters()[3].shape, (std::vector<std::int64_t>{64, 128}));  // k_proj
}

TEST_F(Inventory, gpt2_units_name_parameters_as_hugging_face_does) {
  const Model model = make("gpt2-124m");
  const auto units = model.units();
  ASSERT_EQ(units.size(), 14U);
  EXPECT_EQ(names_of(model, units[0]),
            (std::vector<std::string>{"transformer.wte.weight", "transformer.wpe.weight"}));
  EXPECT_EQ(names_of(model, units[12]),
            (std::vector<std::string>{
                "transformer.h.11.ln_1.weight", "transformer.h.11.ln_1.bias",
                "transformer.h.11.attn.c_attn.weight", "transformer.h.11.attn.c_attn.bias",
                "transformer.h.11.attn.c_proj.weight", "transformer.h.11.attn.c_proj.bias",
                "transformer.h.11.ln_2.weight", "transformer.h.11.ln_2.bias",
                "transformer.h.11.mlp.c_fc.weight", "transformer.h.11.mlp.c_fc.bias",
                "transformer.h.11.mlp.c_proj.weight", "transformer.h.11.mlp.c_proj.bias"}));
  EXPECT_EQ(names_of(model, units[13]),
            (std::vector<std::string>{"transformer.ln_f.weight", "transformer.ln_f.bias",
                                      "transformer.wte.weight"}));
  EXPECT_EQ(model.parameters()[4].shape, (std::vector<std::int64_t>{768, 2304}));  // c_attn
}

TEST_F(Inventory, only_matrices_decay) {
  for (const char* name : {"tiny", "gpt2-124m"}) {
    const Model model = make(name);  // outlives the loop over its parameters
    for (const ParameterSpec& parameter : model.parameters()) {
      EXPECT_EQ(parameter.is_matrix, parameter.shape.size() == 2) << parameter.name;
    }
  }
}

TEST_F(Inventory, initial_values_do_not_depend_on_the_partition) {
  const Model model = make("tiny");
  std::vector<float> whole(1000), part(300), other_seed(1000), other_parameter(1000);
  model.initial_values(0, 42, 100, whole);
  model.initial_values(0, 42, 450, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 350));
  model.initial_values(0, 43, 100, other_seed);
  model.initial_values(2, 42, 100, other_parameter);
  EXPECT_NE(whole, other_seed);
  EXPECT_NE(whole, other_parameter);
}

/// The deviation of n samples is off by 1 / sqrt(2 n) at one sigma; five are allowed.
void expect_deviation(const Model& model, const std::string& name, double expected) {
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    if (model.parameters()[p].name != name) continue;
    std::vector<float> values(static_cast<std::size_t>(model.parameters()[p].elements()));
    model.initial_values(static_cast<int>(p), 1, 0, values);
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * value;
    const auto count = static_cast<double>(values.size());
    EXPECT_NEAR(std::sqrt(squares / count) / expected, 1, 5 / std::sqrt(2 * count)) << name;
    return;
  }
  FAIL() << "no parameter " << name;
}

TEST_F(Inventory, initial_deviations_shrink_where_products_add_to_the_stream) {
  const double shrunk = 0.02 / std::sqrt(2.0 * 5);
  const Model llama = make("tiny");
  expect_deviation(llama, "model.embed_tokens.weight", 0.02);
  expect_deviation(llama, "model.layers.4.mlp.up_proj.weight", 0.02);
  expect_deviation(llama, "model.layers.4.mlp.down_proj.weight", shrunk);
  expect_deviation(llama, "model.layers.0.self_attn.o_proj.weight", shrunk);
  expect_deviation(llama, "lm_head.weight", 0.02);
  const Model gpt2 = make("gpt2-124m");
  expect_deviation(gpt2, "transformer.wpe.weight", 0.02);
  expect_deviation(gpt2, "transformer.h.3.attn.c_proj.weight", 0.02 / std::sqrt(24.0));
}

TEST_F(Inventory, norms_start_at_one_and_biases_at_zero) {
  const Model model = make("gpt2-124m");
  std::vector<float> weight(768), bias(768);
  model.initial_values(2, 1, 0, weight);
  model.initial_values(3, 1, 0, bias);
  EXPECT_EQ(weight, std::vector<float>(768, 1.0F));
  EXPECT_EQ(bias, std::vector<float>(768, 0.0F));
}

/// Two operations for each weight of a matrix and token, and the causal half of q k and p v.
TEST_F(Inventory, flops_count_products) {
  const Model model = make("llama-1b");
  const BatchShape shape{2, 512};
  const double n = 1024;
  const double matrices = 2048.0 * (2 * 2048 + 2 * 256) + 3 * 2048.0 * 5632;
  EXPECT_EQ(model.forward_flops(0, shape), 0);
  EXPECT_DOUBLE_EQ(model.forward_flops(5, shape), 2 * n * matrices + 2 * n * 512 * 2048);
  EXPECT_DOUBLE_EQ(model.forward_flops(23, shape), 2 * n * 32000 * 2048);
}

}  // namespace
}  // namespace terrace::model
