#include "terrace/checkpoint/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

#include "checkpoint/small_model.h"
#include "core/error_of.h"
#include "core/parsed_json.h"
#include "io/temporary_folder.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

using nlohmann::json;
using terrace::testing::error_of;
using terrace::testing::TemporaryFolder;
using ::testing::AllOf;
using testing::FunctionSource;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::small_config;
using testing::small_tensors;

json llama_json() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 32},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"torch_dtype", "bfloat16"}};
}

json gpt2_json() {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", 32},
          {"n_embd", 8},
          {"n_layer", 1},
          {"n_head", 2},
          {"n_positions", 16}};
}

FolderConfig parse(const json& config) { return parse_config(config.dump(), "config.json"); }

Error refusal(json config, const char* key, const json& value) {
  config[key] = value;
  const Error error = error_of([&] { (void)parse(config); });
  EXPECT_EQ(error.kind(), ErrorKind::data);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("config.json"), HasSubstr(key)));
  return error;
}

TEST(ConfigJson, llama_is_read_with_the_defaults_of_its_origin) {
  const FolderConfig read = parse(llama_json());
  EXPECT_EQ(read.config, small_config());
  EXPECT_EQ(read.dtype, DType::bf16);
  EXPECT_TRUE(read.remarks.empty());
}

TEST(ConfigJson, gpt2_is_tied_and_four_times_as_wide_unless_it_says_otherwise) {
  const FolderConfig read = parse(gpt2_json());
  EXPECT_EQ(read.config.architecture, model::Architecture::gpt2);
  EXPECT_TRUE(read.config.tie_word_embeddings);
  EXPECT_EQ(read.config.intermediate_size, 32);
  EXPECT_EQ(read.config.num_key_value_heads, 2);
  EXPECT_EQ(read.config.head_dim, 4);
  EXPECT_FALSE(read.dtype.has_value());
}

TEST(ConfigJson, every_value_that_changes_the_mathematics_unsupported_is_refused) {
  (void)refusal(llama_json(), "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}});
  (void)refusal(llama_json(), "rope_scaling", {{"type", "linear"}, {"factor", 2.0}});
  (void)refusal(llama_json(), "rope_scaling", 2.0);
  (void)refusal(llama_json(), "rope_parameters", {{"rope_type", "yarn"}});
  (void)refusal(llama_json(), "partial_rotary_factor", 0.5);
  (void)refusal(llama_json(), "sliding_window", 4096);
  (void)refusal(llama_json(), "attention_bias", true);
  (void)refusal(llama_json(), "mlp_bias", true);
  (void)refusal(llama_json(), "mlp_bias", "yes");
  (void)refusal(llama_json(), "hidden_act", "gelu");
  (void)refusal(llama_json(), "torch_dtype", "float8_e4m3fn");
  (void)refusal(llama_json(), "quantization_config", {{"bits", 4}});
  (void)refusal(llama_json(), "architectures", {"MistralForCausalLM"});
  (void)refusal(llama_json(), "model_type", "mistral");
  (void)refusal(llama_json(), "hidden_size", 8.5);
  (void)refusal(llama_json(), "hidden_size", nullptr);
  (void)refusal(llama_json(), "head_dim", 3);
  (void)refusal(gpt2_json(), "activation_function", "relu");
  (void)refusal(gpt2_json(), "scale_attn_weights", false);
  (void)refusal(gpt2_json(), "scale_attn_by_inverse_layer_idx", true);
  (void)refusal(gpt2_json(), "add_cross_attention", true);
}

TEST(ConfigJson, neutral_values_are_accepted) {
  json config = llama_json();
  config["rope_scaling"] = {{"rope_type", "default"}};
  config["sliding_window"] = nullptr;
  config["attention_bias"] = false;
  config["partial_rotary_factor"] = 1;
  EXPECT_EQ(parse(config).config, small_config());
  config.erase("rope_theta");
  config.erase("rope_scaling");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  EXPECT_EQ(parse(config).config.rope_theta, 500000.0);
}

TEST(ConfigJson, dropout_is_reported_as_off) {
  json config = gpt2_json();
  config["resid_pdrop"] = 0.1;
  const FolderConfig read = parse(config);
  ASSERT_EQ(read.remarks.size(), 1U);
  EXPECT_THAT(read.remarks[0].text, AllOf(HasSubstr("resid_pdrop"), HasSubstr("0.1")));
}

TEST(ConfigJson, a_file_that_is_no_json_is_named) {
  EXPECT_THAT(error_of([] { (void)parse_config("{\"a\": ", "x/config.json"); }).what(),
              HasSubstr("x/config.json is not JSON"));
  EXPECT_THAT(error_of([] { (void)parse_config("[]", "x/config.json"); }).what(),
              HasSubstr("array"));
}

TEST(ConfigJson, what_is_written_reads_back_equal_and_keeps_foreign_keys) {
  for (const json& base : {llama_json(), gpt2_json()}) {
    ModelDescription model;
    model.config = parse(base).config;
    model.config.norm_eps = 3e-6;
    model.config.initializer_range = 0.01;
    model.dtype = DType::f16;
    model.eos_token_ids = {0};
    EXPECT_EQ(parse(terrace::testing::parse_json(make_config_json(model))).config, model.config);
    json with_more = base;
    with_more["custom"] = {1, 2};
    with_more["eos_token_id"] = {3, 4};
    with_more["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
    model.base_json = with_more.dump();
    model.eos_token_ids = {};
    const FolderConfig again = parse_config(make_config_json(model), "again");
    EXPECT_EQ(again.config, model.config);
    EXPECT_EQ(again.dtype, DType::f16);
    EXPECT_EQ(again.eos_token_ids, (std::vector<std::int64_t>{3, 4}));
    EXPECT_EQ(terrace::testing::parse_json(again.json)["custom"], json({1, 2}));
  }
}

TEST(ConfigJson, the_fingerprint_tells_configurations_apart) {
  model::Config other = small_config();
  EXPECT_EQ(fingerprint_of(other), fingerprint_of(small_config()));
  other.rope_theta += 1;
  EXPECT_NE(fingerprint_of(other), fingerprint_of(small_config()));
}

class ModelFolder : public ::testing::Test {
 protected:
  /// A whole folder; `bytes_max` 1 gives each tensor a file.
  void write(std::uint64_t bytes_max = kShardBytesMax, bool tied = false) {
    ModelDescription model;
    model.config = small_config(tied);
    const std::vector<TensorShape> tensors = small_tensors(tied);
    (void)write_model_folder(folder_.path(), model, tensors, source_,
                             {.shard_bytes_max = bytes_max});
  }
  /// Replaces model.safetensors by one of these tensors; element i of a tensor is `offset` + i.
  void write_weights(const std::vector<TensorShape>& tensors, const std::string& name = "model",
                     float offset = 0) {
    SafetensorsWriter writer(folder_ / (name + ".safetensors"), DType::f32, tensors);
    for (const TensorShape& tensor : tensors) {
      for (std::int64_t i = 0; i < tensor.elements(); ++i) {
        writer.write(std::array{offset + static_cast<float>(i)});
      }
    }
    (void)writer.commit();
  }
  ModelWeights open(bool tied = false, const WeightsOptions& options = {}) {
    return {folder_.path(), small_config(tied), small_tensors(tied), options};
  }
  std::string refusal(bool tied = false) {
    const Error error = error_of([&] { (void)open(tied); });
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.what();
  }
  void expect_equal(ModelWeights& weights, bool tied = false) {
    for (const TensorShape& tensor : small_tensors(tied)) {
      std::vector<float> values(static_cast<std::size_t>(tensor.elements() - 1));
      weights.read(StateKind::parameter, tensor.name, 1, values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float master =
            source_.value(StateKind::master, tensor.name, static_cast<std::int64_t>(i) + 1);
        ASSERT_EQ(values[i], to_float(to_parameter_bf16(master))) << tensor.name;
      }
    }
  }
  static bool has_remark(const ModelWeights& weights, LogLevel level, const std::string& text) {
    return std::any_of(weights.remarks().begin(), weights.remarks().end(), [&](auto& remark) {
      return remark.level == level && remark.text.find(text) != std::string::npos;
    });
  }
  /// Rewrites the index of the shards.
  template <class Edit>
  void edit_index(Edit&& edit) {
    const auto path = folder_ / "model.safetensors.index.json";
    json index = terrace::testing::read_json(path);
    edit(index["weight_map"]);
    io::write_file(path, index.dump());
  }

  TemporaryFolder folder_;
  FunctionSource source_{1};
};

/// Sets how many files this process may have open, until the end of a scope.
class OpenFilesLimit {
 public:
  explicit OpenFilesLimit(rlim_t most) {
    (void)::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit lower{most, before_.rlim_max};
    (void)::setrlimit(RLIMIT_NOFILE, &lower);
  }
  ~OpenFilesLimit() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }
  OpenFilesLimit(const OpenFilesLimit&) = delete;
  OpenFilesLimit& operator=(const OpenFilesLimit&) = delete;

 private:
  rlimit before_{};
};

TEST_F(ModelFolder, of_many_files_only_a_share_of_what_may_be_open_stays_open) {
  write(1);
  const std::size_t files = small_tensors().size();
  const OpenFilesLimit limit(16);
  ASSERT_GT(files, io::open_files_share());
  ModelWeights weights = open();
  expect_equal(weights);
}

TEST_F(ModelFolder, round_trips_in_one_file_and_in_many) {
  for (const std::uint64_t bytes_max : {kShardBytesMax, std::uint64_t{1}, std::uint64_t{1000}}) {
    write(bytes_max);
    EXPECT_TRUE(has_model(folder_.path()));
    EXPECT_EQ(read_config(folder_.path()).config, small_config());
    ModelWeights weights = open();
    EXPECT_TRUE(weights.remarks().empty());  // So nothing of the folder's older model is left.
    expect_equal(weights);
    const std::size_t files = weights.shards().files().size();
    EXPECT_EQ(files, bytes_max == kShardBytesMax ? 1U : bytes_max == 1 ? 21U : files);
    for (const SafetensorsFile& file : weights.shards().files()) {
      EXPECT_TRUE(file.tensors().size() == 1 || file.file_bytes() - file.data_begin() <= bytes_max);
    }
  }
}

TEST_F(ModelFolder, a_write_reports_the_bytes_that_it_wrote) {
  ModelDescription model;
  model.config = small_config();
  const std::vector<TensorShape> tensors = small_tensors();
  const std::uint64_t bytes =
      write_model_folder(folder_.path(), model, tensors, source_, {.shard_bytes_max = 1000});
  std::uint64_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    found += entry.file_size();
  }
  EXPECT_EQ(bytes, found);
}

TEST_F(ModelFolder, a_write_that_fails_leaves_the_older_model_whole) {
  write();
  ModelDescription model;
  model.config = small_config();
  const std::vector<TensorShape> tensors = small_tensors();
  int calls = 0;
  FunctionSource other(2);
  const auto cancel = [&](const Progress&) {
    if (++calls == 5) fail(ErrorKind::io, "cancelled");
  };
  EXPECT_THROW(
      (void)write_model_folder(folder_.path(), model, tensors, other, {.progress = cancel}), Error);
  ModelWeights weights = open();
  expect_equal(weights);
  EXPECT_FALSE(std::filesystem::exists(folder_ / ("model.tmp-" + std::to_string(::getpid()))));
}

TEST_F(ModelFolder, files_that_the_index_names_and_that_are_missing_are_all_listed) {
  write(1);
  const std::string second = "model-00002-of-00021.safetensors";
  const std::string third = "model-00003-of-00021.safetensors";
  const std::string fourth = "model-00004-of-00021.safetensors";
  std::filesystem::remove(folder_ / second);
  std::filesystem::resize_file(folder_ / third, 0);
  std::filesystem::remove(folder_ / fourth);
  std::filesystem::create_symlink("../blobs/none", folder_ / fourth);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(second), HasSubstr(third + " (empty)"),
                               HasSubstr(fourth + " (a link"), HasSubstr("but 3 of them"),
                               Not(HasSubstr("model-00005"))));
}

TEST_F(ModelFolder, an_index_entry_without_its_tensor_is_refused) {
  write(1);
  edit_index([](json& map) { map["model.norm.weight"] = "model-00001-of-00021.safetensors"; });
  EXPECT_THAT(refusal(), AllOf(HasSubstr("model.norm.weight"), HasSubstr("model-00001-of-00021")));
}

TEST_F(ModelFolder, a_stale_index_of_another_count_of_files_is_refused) {
  write(1);
  edit_index([](json& map) {
    for (auto& [tensor, file] : map.items()) {
      file = "model-00001-of-00002.safetensors";
    }
  });
  EXPECT_THAT(refusal(), HasSubstr("model-00001-of-00002.safetensors"));
}

TEST_F(ModelFolder, an_index_cannot_lead_out_of_its_folder) {
  write(1);
  edit_index([](json& map) { map["model.norm.weight"] = "../x.safetensors"; });
  EXPECT_THAT(refusal(), HasSubstr("../x.safetensors"));
}

TEST_F(ModelFolder, a_tensor_that_the_index_does_not_name_is_remarked_upon_once) {
  write(1);
  std::string file;
  edit_index([&](json& map) { file = map["model.norm.weight"]; });
  SafetensorsWriter writer(folder_ / file, DType::f32,
                           std::vector<TensorShape>{{"model.norm.weight", {8}}, {"more", {2}}});
  writer.write(std::vector<float>(10, 1.0F));
  (void)writer.commit();
  const ModelWeights weights = open();
  EXPECT_TRUE(has_remark(weights, LogLevel::warning, "passing over 1 tensor in"));
}

TEST_F(ModelFolder, stray_files_are_ignored_and_said_so) {
  write(1);
  write_weights({{"stray", {1}}}, "consolidated");
  write_weights({{"stray", {1}}}, "model");
  ModelWeights weights = open();
  expect_equal(weights);
  EXPECT_TRUE(has_remark(weights, LogLevel::info, "consolidated.safetensors"));
  EXPECT_TRUE(has_remark(weights, LogLevel::info, "model.safetensors"));
}

TEST_F(ModelFolder, a_tied_head_may_be_absent_or_stored_once_more) {
  write(kShardBytesMax, true);
  ModelWeights absent = open(true);
  EXPECT_TRUE(absent.remarks().empty());
  EXPECT_FALSE(absent.shards().find("lm_head.weight"));  // So a tied model is saved with one copy.
  expect_equal(absent, true);

  write_weights(small_tensors(false));  // Head and embedding have the same values here.
  EXPECT_TRUE(open(true).remarks().empty());
}

TEST_F(ModelFolder, a_tied_head_that_differs_is_a_warning_and_an_untied_one_must_be_there) {
  write(kShardBytesMax, false);  // All tensors differ.
  const ModelWeights differs = open(true);
  EXPECT_TRUE(has_remark(differs, LogLevel::warning, "lm_head.weight differs"));
  write_weights(small_tensors(true));
  EXPECT_THAT(refusal(false), HasSubstr("lm_head.weight [32, 8]"));
}

TEST_F(ModelFolder, names_without_the_architectures_prefix_are_found) {
  std::vector<TensorShape> tensors = small_tensors(true);
  for (TensorShape& tensor : tensors) tensor.name.erase(0, std::string("model.").size());
  tensors.push_back({"layers.0.self_attn.rotary_emb.inv_freq", {2}});
  write_weights(tensors);
  ModelWeights weights = open(true);
  std::array<float, 2> values{};
  weights.read(StateKind::master, "model.norm.weight", 3, values);
  EXPECT_EQ(values, (std::array{3.0F, 4.0F}));
}

TEST_F(ModelFolder, other_names_are_shown_side_by_side) {
  std::vector<TensorShape> tensors = small_tensors();
  for (TensorShape& tensor : tensors) tensor.name = "language_" + tensor.name;
  write_weights(tensors);
  const std::string message = refusal();
  EXPECT_THAT(message, AllOf(HasSubstr("missing (21)"), HasSubstr("unexpected (21)"),
                             HasSubstr("model.embed_tokens.weight [32, 8]"),
                             HasSubstr("| language_model.embed_tokens.weight [32, 8]")));
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 6);  // A head and five rows.
}

TEST_F(ModelFolder, a_transposed_matrix_is_refused_with_both_shapes) {
  std::vector<TensorShape> tensors = small_tensors();
  for (TensorShape& tensor : tensors) {
    if (tensor.name == "model.layers.1.mlp.up_proj.weight") tensor.shape = {8, 12};
  }
  write_weights(tensors);
  EXPECT_THAT(refusal(), HasSubstr("model.layers.1.mlp.up_proj.weight is [8, 12], not [12, 8]"));
}

TEST_F(ModelFolder, a_bias_that_the_model_has_no_use_for_is_an_error_unless_ignored) {
  std::vector<TensorShape> tensors = small_tensors();
  tensors.push_back({"model.layers.0.self_attn.q_proj.bias", {8}});
  write_weights(tensors);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("missing (0)"), HasSubstr("q_proj.bias [8]")));
  const ModelWeights weights = open(false, {.ignore_unused = {"*.q_proj.bias"}});
  EXPECT_TRUE(has_remark(weights, LogLevel::warning, "q_proj.bias"));
}

TEST_F(ModelFolder, pickles_are_refused_with_a_way_out) {
  io::write_file(folder_ / "config.json", llama_json().dump());
  io::write_file(folder_ / "pytorch_model.bin", "x");
  EXPECT_FALSE(has_model(folder_.path()));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("pytorch_model.bin"), HasSubstr("save_pretrained")));
  std::filesystem::remove(folder_ / "pytorch_model.bin");
  EXPECT_THAT(refusal(), HasSubstr("model.safetensors.index.json"));
}

TEST_F(ModelFolder, a_folder_of_links_as_the_hub_caches_it_is_read) {
  write(1000);
  const TemporaryFolder cache;
  const auto snapshot = cache / "snapshots/0123";
  std::filesystem::create_directories(snapshot);
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    std::filesystem::create_symlink(entry.path(), snapshot / entry.path().filename());
  }
  ModelWeights weights(snapshot, read_config(snapshot).config, small_tensors());
  expect_equal(weights);
}

}  // namespace
}  // namespace terrace::checkpoint
