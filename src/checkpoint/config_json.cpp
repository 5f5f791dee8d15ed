#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "terrace/checkpoint/model_folder.h"
#include "terrace/core/excerpt.h"
#include "terrace/core/json.h"
#include "terrace/io/checksum.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

constexpr std::uint64_t kJsonBytesMax = 16ULL << 20;

/// Typed access to the keys of a config.json; null counts as absent.
class Keys {
 public:
  Keys(const Json& json, std::string_view where) : json_(json), where_(where) {}

  [[nodiscard]] std::string_view where() const { return where_; }

  /// The value of the first of two spellings that is there.
  [[nodiscard]] const Json* find(std::string_view name, std::string_view other = {}) const {
    for (const std::string_view spelling : {name, other}) {
      if (spelling.empty()) continue;
      const auto found = json_.find(std::string(spelling));
      if (found != json_.end() && !found->is_null()) return &*found;
    }
    return nullptr;
  }

  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name,
                                                    std::string_view other = {}) const {
    const Json* value = find(name, other);
    if (value == nullptr) return std::nullopt;
    check(value->is_number_integer(), name, *value, "a whole number");
    return value->get<std::int64_t>();
  }
  [[nodiscard]] std::int64_t size(std::string_view name, std::string_view other = {}) const {
    const std::optional<std::int64_t> value = integer(name, other);
    require(value.has_value(), ErrorKind::data, "{} lacks the key {}, a whole number", where_,
            name);
    return *value;
  }
  [[nodiscard]] double number(std::string_view name, double absent) const {
    const Json* value = find(name);
    if (value == nullptr) return absent;
    check(value->is_number(), name, *value, "a number");
    return value->get<double>();
  }
  [[nodiscard]] bool flag(std::string_view name, bool absent) const {
    const Json* value = find(name);
    if (value == nullptr) return absent;
    check(value->is_boolean(), name, *value, "true or false");
    return value->get<bool>();
  }
  [[nodiscard]] std::string text(std::string_view name, std::string_view absent) const {
    const Json* value = find(name);
    if (value == nullptr) return std::string(absent);
    check(value->is_string(), name, *value, "a text");
    return value->get<std::string>();
  }

  /// Refuses a switch of the mathematics that is set to what is not built.
  void must_be(std::string_view name, bool supported) const {
    check(flag(name, supported) == supported, name, !supported, supported ? "true" : "false");
  }
  /// Refuses a key that must be absent, null or one of two neutral values.
  void must_be_neutral(std::string_view name, const Json& neutral) const {
    const Json* value = find(name);
    check(value == nullptr || *value == neutral, name, value == nullptr ? Json() : *value,
          neutral.is_null() ? "null" : json_line(neutral));
  }

  void check(bool condition, std::string_view name, const Json& found,
             std::string_view supported) const {
    require(condition, ErrorKind::data, "{}: {} is {}, but only {} is supported", where_, name,
            excerpt(json_line(found)), supported);
  }

 private:
  const Json& json_;
  std::string_view where_;
};

/// Rotary positions, in the keys of transformers 4 (rope_theta, rope_scaling) and of 5
/// (rope_parameters).
double read_rope(const Keys& keys) {
  double theta = keys.number("rope_theta", 10000);
  for (const std::string_view name : {"rope_scaling", "rope_parameters"}) {
    const Json* scaling = keys.find(name);
    if (scaling == nullptr) continue;
    keys.check(scaling->is_object(), name, *scaling, "null or an object of type \"default\"");
    const Keys inner(*scaling, keys.where());
    const std::string type = inner.text("rope_type", inner.text("type", "default"));
    keys.check(type == "default", name, *scaling, "the type \"default\"");
    theta = inner.number("rope_theta", theta);
    inner.must_be_neutral("partial_rotary_factor", 1.0);
  }
  keys.must_be_neutral("partial_rotary_factor", 1.0);
  return theta;
}

model::Config read_llama(const Keys& keys) {
  model::Config config;
  config.architecture = model::Architecture::llama;
  config.vocab_size = keys.size("vocab_size");
  config.hidden_size = keys.size("hidden_size");
  config.intermediate_size = keys.size("intermediate_size");
  config.num_hidden_layers = keys.size("num_hidden_layers");
  config.num_attention_heads = keys.size("num_attention_heads");
  config.num_key_value_heads =
      keys.integer("num_key_value_heads").value_or(config.num_attention_heads);
  config.head_dim =
      keys.integer("head_dim")
          .value_or(config.num_attention_heads > 0 ? config.hidden_size / config.num_attention_heads
                                                   : 0);
  config.max_position_embeddings = keys.integer("max_position_embeddings").value_or(2048);
  config.norm_eps = keys.number("rms_norm_eps", 1e-6);
  config.rope_theta = read_rope(keys);
  config.tie_word_embeddings = keys.flag("tie_word_embeddings", false);
  const std::string activation = keys.text("hidden_act", "silu");
  keys.check(activation == "silu" || activation == "swish", "hidden_act", activation, "\"silu\"");
  keys.must_be("attention_bias", false);
  keys.must_be("mlp_bias", false);
  keys.must_be_neutral("sliding_window", nullptr);
  return config;
}

model::Config read_gpt2(const Keys& keys) {
  model::Config config;
  config.architecture = model::Architecture::gpt2;
  config.vocab_size = keys.size("vocab_size");
  config.hidden_size = keys.size("n_embd", "hidden_size");
  config.intermediate_size = keys.integer("n_inner").value_or(4 * config.hidden_size);
  config.num_hidden_layers = keys.size("n_layer", "num_hidden_layers");
  config.num_attention_heads = keys.size("n_head", "num_attention_heads");
  config.num_key_value_heads = config.num_attention_heads;
  config.head_dim =
      config.num_attention_heads > 0 ? config.hidden_size / config.num_attention_heads : 0;
  config.max_position_embeddings = keys.size("n_positions", "max_position_embeddings");
  config.norm_eps = keys.number("layer_norm_epsilon", 1e-5);
  config.tie_word_embeddings = keys.flag("tie_word_embeddings", true);
  const std::string activation = keys.text("activation_function", "gelu_new");
  keys.check(activation == "gelu_new" || activation == "gelu_pytorch_tanh", "activation_function",
             activation, "\"gelu_new\"");
  keys.must_be("scale_attn_weights", true);
  keys.must_be("scale_attn_by_inverse_layer_idx", false);
  keys.must_be("add_cross_attention", false);
  return config;
}

model::Architecture read_architecture(const Keys& keys) {
  constexpr std::string_view kSupported = "\"LlamaForCausalLM\" or \"GPT2LMHeadModel\"";
  const std::string type = keys.text("model_type", "");
  const Json* architectures = keys.find("architectures");
  if (architectures == nullptr) {
    keys.check(type == "llama" || type == "gpt2", "model_type", type, "\"llama\" or \"gpt2\"");
    return type == "llama" ? model::Architecture::llama : model::Architecture::gpt2;
  }
  const bool is_one = architectures->is_array() && architectures->size() == 1;
  const Json name = is_one ? (*architectures)[0] : Json();
  const bool is_llama = name == "LlamaForCausalLM" || name == "LlamaModel";
  const bool is_gpt2 = name == "GPT2LMHeadModel" || name == "GPT2Model";
  keys.check(is_llama || is_gpt2, "architectures", *architectures, kSupported);
  const std::string_view expected = is_llama ? "llama" : "gpt2";
  keys.check(type.empty() || type == expected, "model_type", type,
             is_llama ? "\"llama\" for this architecture" : "\"gpt2\" for this architecture");
  return is_llama ? model::Architecture::llama : model::Architecture::gpt2;
}

std::optional<DType> read_dtype(const Keys& keys) {
  std::string name = keys.text("dtype", keys.text("torch_dtype", ""));
  if (name.starts_with("torch.")) name.erase(0, 6);
  if (name.empty() || name == "auto") return std::nullopt;
  const std::optional<DType> dtype = dtype_named(name);
  keys.check(dtype && *dtype != DType::i32, keys.find("dtype") ? "dtype" : "torch_dtype", name,
             "float32, bfloat16 or float16");
  return dtype;
}

void remark_on_dropout(const Keys& keys, std::vector<Remark>& remarks) {
  for (const std::string_view name :
       {"attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    const double rate = keys.number(name, 0);
    if (rate == 0) continue;
    remarks.push_back({LogLevel::warning, fmt::format("{}: {} is {}, but dropout is not built and "
                                                      "stays off",
                                                      keys.where(), name, rate)});
  }
}

/// "eos_token_id" is a number or a list of them.
std::vector<std::int64_t> read_ids(const Keys& keys, std::string_view name) {
  const Json* value = keys.find(name);
  if (value == nullptr) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  std::vector<std::int64_t> ids;
  for (const Json& id : list) {
    keys.check(id.is_number_integer(), name, *value, "a token's number or a list of them");
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

std::string_view hugging_face_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    case DType::i32:
      break;
  }
  fail(ErrorKind::internal, "weights cannot be {}", name_of(dtype));
}

void set_llama(Json& json, const model::Config& config) {
  json["hidden_act"] = "silu";
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = config.num_key_value_heads;
  json["head_dim"] = config.head_dim;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = config.norm_eps;
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
  const auto parameters = json.find("rope_parameters");
  if (parameters != json.end() && parameters->is_object()) {
    (*parameters)["rope_theta"] = config.rope_theta;
  } else {
    json["rope_theta"] = config.rope_theta;
    json["rope_scaling"] = nullptr;
  }
}

void set_gpt2(Json& json, const model::Config& config) {
  json["activation_function"] = "gelu_new";
  json["n_embd"] = config.hidden_size;
  if (config.intermediate_size == 4 * config.hidden_size) {
    json["n_inner"] = nullptr;
  } else {
    json["n_inner"] = config.intermediate_size;
  }
  json["n_layer"] = config.num_hidden_layers;
  json["n_head"] = config.num_attention_heads;
  json["n_positions"] = config.max_position_embeddings;
  json["layer_norm_epsilon"] = config.norm_eps;
  // Absent they would be 0.1 elsewhere, and a model trained without dropout would train on with it.
  for (const char* name : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    if (!json.contains(name)) json[name] = 0.0;
  }
}

}  // namespace

FolderConfig parse_config(std::string_view text, std::string_view where) {
  const Json json = parse_object(text, where, ErrorKind::data);
  const Keys keys(json, where);
  FolderConfig result;
  keys.must_be_neutral("quantization_config", nullptr);
  const model::Architecture architecture = read_architecture(keys);
  result.config = architecture == model::Architecture::llama ? read_llama(keys) : read_gpt2(keys);
  result.config.initializer_range = keys.number("initializer_range", 0.02);
  result.dtype = read_dtype(keys);
  result.bos_token_id = keys.integer("bos_token_id");
  result.eos_token_ids = read_ids(keys, "eos_token_id");
  result.json = text;
  remark_on_dropout(keys, result.remarks);
  model::validate(result.config, where);
  return result;
}

FolderConfig read_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  FolderConfig result = parse_config(io::read_file(path, kJsonBytesMax), path.string());
  const std::filesystem::path generation = folder / "generation_config.json";
  if (io::is_there(generation, ErrorKind::data)) {
    const std::string where = generation.string();
    const Json json =
        parse_object(io::read_file(generation, kJsonBytesMax), where, ErrorKind::data);
    const std::vector<std::int64_t> ids = read_ids(Keys(json, where), "eos_token_id");
    if (!ids.empty()) result.eos_token_ids = ids;
  }
  return result;
}

std::uint64_t fingerprint_of(const model::Config& config) {
  const std::string text = make_config_json({.config = config, .dtype = DType::f32});
  return io::crc64(std::as_bytes(std::span(text)));
}

std::string make_config_json(const ModelDescription& model) {
  const model::Config& config = model.config;
  const bool is_llama = config.architecture == model::Architecture::llama;
  Json json = model.base_json.empty()
                  ? Json::object()
                  : parse_object(model.base_json, "the model's own config.json", ErrorKind::data);
  json["architectures"] = Json::array({is_llama ? "LlamaForCausalLM" : "GPT2LMHeadModel"});
  json["model_type"] = is_llama ? "llama" : "gpt2";
  json["vocab_size"] = config.vocab_size;
  is_llama ? set_llama(json, config) : set_gpt2(json, config);
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json[json.contains("dtype") ? "dtype" : "torch_dtype"] = hugging_face_name(model.dtype);
  if (json.contains("dtype")) json.erase("torch_dtype");
  // Explicit nulls: absent, they would be another model's ids by default.
  if (model.bos_token_id || !json.contains("bos_token_id")) {
    json["bos_token_id"] = model.bos_token_id ? Json(*model.bos_token_id) : Json();
  }
  if (!model.eos_token_ids.empty() || !json.contains("eos_token_id")) {
    json["eos_token_id"] = model.eos_token_ids.empty()       ? Json()
                           : model.eos_token_ids.size() == 1 ? Json(model.eos_token_ids.front())
                                                             : Json(model.eos_token_ids);
  }
  return json_text(json);
}

}  // namespace terrace::checkpoint
