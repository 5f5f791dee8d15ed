#include "terrace/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "terrace/core/edit_distance.h"
#include "terrace/core/error.h"

namespace terrace::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Config valid_llama() {
  Config config;
  config.vocab_size = 100;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 64;
  return config;
}

Config valid_gpt2() {
  Config config = valid_llama();
  config.architecture = Architecture::gpt2;
  config.num_key_value_heads = 6;
  return config;
}

std::string refusal(Config config, const std::function<void(Config&)>& spoil) {
  spoil(config);
  try {
    validate(config, "model/config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.what();
  }
  return "";
}

TEST(Config, valid_shapes_pass) {
  validate(valid_llama(), "llama");
  validate(valid_gpt2(), "gpt2");
}

TEST(Config, refusals_name_the_source_the_key_and_what_was_found) {
  EXPECT_THAT(refusal(valid_llama(), [](Config& c) { c.hidden_size = 0; }),
              AllOf(HasSubstr("model/config.json"), HasSubstr("hidden_size is 0")));
  EXPECT_THAT(refusal(valid_llama(), [](Config& c) { c.num_hidden_layers = -1; }),
              HasSubstr("num_hidden_layers is -1"));
  EXPECT_THAT(refusal(valid_llama(), [](Config& c) { c.vocab_size = 1LL << 40; }),
              HasSubstr("vocab_size is 1099511627776"));
  EXPECT_THAT(refusal(valid_llama(), [](Config& c) { c.num_key_value_heads = 4; }),
              AllOf(HasSubstr("num_attention_heads is 6"), HasSubstr("num_key_value_heads (4)")));
  EXPECT_THAT(refusal(valid_llama(), [](Config& c) { c.head_dim = 5; }),
              AllOf(HasSubstr("head_dim is 5"), HasSubstr("even")));
  EXPECT_THAT(refusal(valid_llama(), [](Config& c) { c.norm_eps = 0; }),
              HasSubstr("rms_norm_eps is 0"));
  EXPECT_THAT(refusal(valid_llama(), [](Config& c) { c.rope_theta = -1; }),
              HasSubstr("rope_theta is -1"));
}

TEST(Config, gpt2_refusals_use_its_own_keys) {
  EXPECT_THAT(refusal(valid_gpt2(), [](Config& c) { c.hidden_size = -3; }),
              HasSubstr("n_embd is -3"));
  EXPECT_THAT(refusal(valid_gpt2(), [](Config& c) { c.hidden_size = 25; }),
              AllOf(HasSubstr("n_embd is 25"), HasSubstr("n_head (6)")));
  EXPECT_THAT(refusal(valid_gpt2(), [](Config& c) { c.num_key_value_heads = 3; }),
              HasSubstr("n_head 6"));
  EXPECT_THAT(refusal(valid_gpt2(), [](Config& c) { c.norm_eps = -1; }),
              HasSubstr("layer_norm_epsilon"));
  // An odd head dimension is only wrong where positions are rotated.
  EXPECT_EQ(refusal(valid_gpt2(), [](Config& c) { c.hidden_size = 30, c.head_dim = 5; }), "");
}

/// Elements of the matrices, written down once more from the architectures' definitions.
std::int64_t matrix_elements(const Config& c) {
  const std::int64_t q = c.num_attention_heads * c.head_dim;
  const std::int64_t kv = c.num_key_value_heads * c.head_dim;
  const bool gpt2 = c.architecture == Architecture::gpt2;
  const std::int64_t block =
      c.hidden_size * (2 * q + 2 * kv + (gpt2 ? 2 : 3) * c.intermediate_size);
  const std::int64_t tables =
      c.vocab_size * (c.tie_word_embeddings ? 1 : 2) + (gpt2 ? c.max_position_embeddings : 0);
  return c.num_hidden_layers * block + tables * c.hidden_size;
}

TEST(Presets, are_valid_unique_and_smallest_first) {
  std::int64_t before = 0;
  for (const Preset& preset : presets()) {
    validate(preset.config, preset.name);
    EXPECT_GT(preset.learning_rate, 0) << preset.name;
    EXPECT_EQ(&terrace::model::preset(preset.name), &preset);
    EXPECT_GT(matrix_elements(preset.config), before) << preset.name;
    before = matrix_elements(preset.config);
  }
}

TEST(Presets, have_the_sizes_that_their_names_promise) {
  const auto millions = [](const char* name) {
    return static_cast<double>(matrix_elements(preset(name).config)) / 1e6;
  };
  EXPECT_NEAR(millions("tiny"), 1, 0.2);
  EXPECT_NEAR(millions("mini"), 4.5, 0.5);
  EXPECT_NEAR(millions("small"), 10, 1);
  EXPECT_NEAR(millions("gpt2-124m"), 124, 1);
  EXPECT_NEAR(millions("llama-160m"), 162, 2);
  EXPECT_NEAR(millions("llama-1b"), 1100, 10);
  EXPECT_NEAR(millions("gpt2-xl"), 1557, 10);
  EXPECT_NEAR(millions("llama-7b"), 6738, 10);
  EXPECT_NEAR(millions("llama-8b"), 8030, 10);
  EXPECT_NEAR(millions("llama-70b"), 70550, 100);
}

TEST(Presets, a_misspelt_name_is_answered_with_the_nearest_first) {
  try {
    static_cast<void>(preset("lama1b"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("\"lama1b\""), HasSubstr("are llama-1b, "),
                                    HasSubstr("tiny"), HasSubstr("gpt2-124m")));
  }
}

TEST(EditDistance, counts_edits_and_neighbours_swapped) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("batch_size", "bacth-SIZE"), 1U);
  EXPECT_EQ(edit_distance("learning_rate", "learningrate"), 1U);
}

}  // namespace
}  // namespace terrace::model
