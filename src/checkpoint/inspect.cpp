#include "terrace/checkpoint/inspect.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "hex.h"
#include "marker.h"
#include "pairs.h"
#include "render.h"
#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/core/json.h"
#include "terrace/io/file.h"
#include "terrace/io/page_store.h"

namespace terrace::checkpoint {
namespace {

constexpr const char* kTensors = "tensors";

Json begin(const char* kind, const std::filesystem::path& path) {
  return {{"kind", kind}, {"path", path.string()}};
}

Json tensor_to_json(const TensorEntry& tensor) {
  return {{"name", tensor.name},
          {"dtype", tensor.dtype},
          {"shape", tensor.shape},
          {"bytes", tensor.bytes()}};
}

Json describe_file(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  Json json = begin("safetensors file", path);
  json["bytes"] = file.file_bytes();
  json["tensor_count"] = file.tensors().size();
  json["metadata"] = to_object({file.metadata().begin(), file.metadata().end()});
  Json tensors = Json::array();
  for (const TensorEntry& tensor : file.tensors()) tensors.push_back(tensor_to_json(tensor));
  json[kTensors] = std::move(tensors);
  return json;
}

Json describe_config(const FolderConfig& folder) {
  const model::Config& config = folder.config;
  const bool is_llama = config.architecture == model::Architecture::llama;
  return {{"architecture", is_llama ? "llama" : "gpt2"},
          {"dtype", folder.dtype ? Json(std::string(terrace::name_of(*folder.dtype))) : Json()},
          {"layers", config.num_hidden_layers},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"heads", config.num_attention_heads},
          {"key_value_heads", config.num_key_value_heads},
          {"head_dim", config.head_dim},
          {"vocabulary", config.vocab_size},
          {"positions", config.max_position_embeddings},
          {"tied_head", config.tie_word_embeddings}};
}

void add_tensors(Json& json, const ShardReader& shards) {
  std::int64_t parameters = 0;
  Json tensors = Json::array();
  for (const ShardReader::Located& tensor : shards.tensors()) {
    parameters += tensor.entry->elements();
    Json entry = tensor_to_json(*tensor.entry);
    entry["file"] = tensor.file->path().filename().string();
    tensors.push_back(std::move(entry));
  }
  json["parameters"] = parameters;
  json["tensor_count"] = tensors.size();
  json[kTensors] = std::move(tensors);
}

Json describe_model(const std::filesystem::path& folder) {
  const FolderConfig config = read_config(folder);
  Json json = begin("model folder", folder);
  json["model"] = describe_config(config);
  if (!has_model(folder)) {
    json["weights"] = nullptr;  // A configuration alone: enough for a plan.
    return json;
  }
  const ShardReader shards(folder, "model");
  Json files = Json::array();
  std::uint64_t bytes = 0;
  for (const SafetensorsFile& file : shards.files()) {
    bytes += file.file_bytes();
    files.push_back({{"name", file.path().filename().string()}, {"bytes", file.file_bytes()}});
  }
  json["bytes"] = bytes;
  add_tensors(json, shards);
  json["files"] = std::move(files);
  return json;
}

Json describe_trainer(const TrainerState& state) {
  Json data = Json::array();
  for (const data::FileFingerprint& file : state.identity.data.files) {
    data.push_back({{"name", file.path.string()},
                    {"bytes", file.contents.bytes},
                    {"crc64", to_hex(file.contents.crc64)}});
  }
  const std::int64_t sequences = std::max<std::int64_t>(1, state.loader.sequences);
  return {
      {"run_id", state.run.text()},
      {"step", state.global_step},
      {"max_steps", state.max_steps},
      {"epoch", state.epoch},
      {"updates", state.adam_step},
      {"skipped_steps", state.skipped_steps},
      {"tokens_seen", state.tokens_seen},
      {"next_sample",
       {{"epoch", state.loader.samples / sequences}, {"sample", state.loader.samples % sequences}}},
      {"seed", state.identity.seed},
      {"data", std::move(data)},
      {"numerics", to_object(state.numerics)},
      {"optimizer_state", to_object(state.state_form)},
      {"versions", to_object(state.versions)}};
}

Json describe_checkpoint(const std::filesystem::path& folder, const InspectOptions& options) {
  const TrainingCheckpoint checkpoint(folder);
  if (options.verify) checkpoint.verify(options.progress);
  Json json = begin("checkpoint", folder);
  json["checked"] = options.verify ? "every checksum" : "sizes, and checksums of small files";
  json["bytes"] = checkpoint.bytes();
  json["model"] = describe_config(checkpoint.config());
  add_tensors(json, ShardReader(folder, "model", ErrorKind::corrupt));
  json["training"] = describe_trainer(checkpoint.trainer());
  Json files = Json::array();
  for (const WrittenFile& file : read_marker(folder).files) {
    files.push_back({{"name", file.name},
                     {"bytes", file.fingerprint.bytes},
                     {"crc64", to_hex(file.fingerprint.crc64)}});
  }
  json["files"] = std::move(files);
  return json;
}

Json describe_output(const std::filesystem::path& folder, const CheckpointList& list,
                     const InspectOptions& options) {
  Json json = begin("output folder", folder);
  if (options.verify) {
    if (!list.broken.empty()) fail(ErrorKind::corrupt, "{}", list.broken.front().fault);
    require(!list.complete.empty(), ErrorKind::usage, "{} has no complete checkpoint to verify",
            folder.string());
    for (const CheckpointEntry& entry : list.complete) {
      TrainingCheckpoint(entry.folder).verify(options.progress);
    }
    json["checked"] = "every checksum";
  }
  json["final_model"] = has_model(folder);
  Json complete = Json::array();
  for (const CheckpointEntry& entry : list.complete) {
    std::uint64_t bytes = 0;
    for (const WrittenFile& file : read_marker(entry.folder).files) bytes += file.fingerprint.bytes;
    complete.push_back(
        {{"step", entry.step}, {"folder", entry.folder.filename().string()}, {"bytes", bytes}});
  }
  Json broken = Json::array();
  for (const CheckpointEntry& entry : list.broken) {
    broken.push_back({{"step", entry.step}, {"fault", entry.fault}});
  }
  Json unfinished = Json::array();
  for (const std::filesystem::path& path : list.unfinished) {
    unfinished.push_back(path.filename().string());
  }
  json["checkpoints"] = std::move(complete);
  json["broken_checkpoints"] = std::move(broken);
  json["unfinished_saves"] = std::move(unfinished);
  return json;
}

/// The run state of a store, where it is one that `to_json` wrote.
Json describe_run_state(const std::vector<std::byte>& bytes, const std::string& where) {
  if (bytes.empty()) return nullptr;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return describe_trainer(parse_trainer_state(text, where));
}

Json describe_store(const std::filesystem::path& folder) {
  Log silent([](LogLevel, std::string_view) {});
  const std::array folders = {folder};
  io::PageStoreOptions options;
  options.beside_live_run = true;
  const auto store = io::PageStore::open(folders, options, silent);
  Json json = begin("page store", folder);
  std::uint64_t bytes = 0;
  Json pages = Json::array();
  for (const io::PageSpec& page : store->pages()) {
    const auto version = store->committed_version(page.id);
    bytes += page.bytes;
    pages.push_back({{"id", page.id.value},
                     {"description", page.description},
                     {"bytes", page.bytes},
                     {"committed_step", version ? Json(version->value) : Json()}});
  }
  const auto version = store->committed_version();
  json["committed_step"] = version ? Json(version->value) : Json();
  json["torn"] = store->was_torn();
  json["extents_per_page"] = store->extents_per_page();
  json["page_count"] = pages.size();
  json["bytes"] = bytes;
  const std::string where = "the run state of " + folder.string();
  json["training"] = version ? describe_run_state(store->run_state(), where) : Json();
  json["pages"] = std::move(pages);
  return json;
}

Json describe(const std::filesystem::path& path, const InspectOptions& options) {
  require(io::is_there(path, ErrorKind::data), ErrorKind::data,
          "{} does not exist; a safetensors file, checkpoint, model folder, output folder or page "
          "store was expected",
          path.string());
  auto without_checksums = [&](Json described) {
    require(!options.verify, ErrorKind::usage,
            "{} is a {}, which has no checksums to verify; a checkpoint, or an output folder that "
            "has some, was expected",
            path.string(), described["kind"].get<std::string>());
    return described;
  };
  if (!io::is_folder(path, ErrorKind::data)) {
    require(path.extension() == ".safetensors", ErrorKind::data,
            "{} is not a .safetensors file; give one, or a folder", path.string());
    return without_checksums(describe_file(path));
  }
  if (io::is_there(path / kMarkerName)) return describe_checkpoint(path, options);
  if (io::is_there(path / "manifest") && io::is_there(path / "pages"))
    return without_checksums(describe_store(path));
  const CheckpointList list = list_checkpoints(path);
  const bool has_checkpoints =
      !list.complete.empty() || !list.broken.empty() || !list.unfinished.empty();
  if (has_checkpoints) return describe_output(path, list, options);
  return without_checksums(describe_model(resolve_model_folder(path).folder));
}

}  // namespace

Inspection inspect(const std::filesystem::path& path, const InspectOptions& options) {
  Json json = describe(path, options);
  Inspection inspection;
  inspection.json = json_text(json);
  if (json["kind"] != "safetensors file") json.erase(kTensors);
  inspection.text = render(json);
  return inspection;
}

}  // namespace terrace::checkpoint
