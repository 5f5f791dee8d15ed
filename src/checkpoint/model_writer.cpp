#include "model_writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "progress.h"
#include "staging.h"
#include "terrace/checkpoint/held_values.h"
#include "terrace/core/json.h"
#include "terrace/data/tokenizer.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

constexpr const char* kConfigName = "config.json";
constexpr const char* kGenerationName = "generation_config.json";

std::string make_generation_json(const ModelDescription& model) {
  Json json = {{"_from_model_config", true}};
  if (model.bos_token_id) json["bos_token_id"] = *model.bos_token_id;
  if (model.eos_token_ids.size() == 1) json["eos_token_id"] = model.eos_token_ids.front();
  if (model.eos_token_ids.size() > 1) json["eos_token_id"] = model.eos_token_ids;
  return json_text(json);
}

/// Whether a file is one that an older model of the same folder left: its weights and their index.
bool is_weights_file(const std::string& name) {
  return name.starts_with("model") &&
         (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"));
}

/// Moves what `staged` holds into `folder`, `config.json` last, so that it is there only while the
/// model is whole.
void move_into_place(const std::filesystem::path& staged, const std::filesystem::path& folder) {
  std::error_code code;
  std::filesystem::remove(folder / kConfigName, code);
  io::sync_folder(folder);
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(staged)) {
    names.insert(entry.path().filename().string());
  }
  std::vector<std::filesystem::path> stale;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (is_weights_file(name) && !names.contains(name)) stale.push_back(entry.path());
  }
  for (const std::filesystem::path& path : stale) std::filesystem::remove(path, code);
  for (const std::string& name : names) {
    if (name != kConfigName) io::rename_durably(staged / name, folder / name);
  }
  io::rename_durably(staged / kConfigName, folder / kConfigName);
}

}  // namespace

std::vector<TextFile> description_files(const ModelDescription& model) {
  std::vector<TextFile> files = {{kConfigName, make_config_json(model)}};
  const bool has_generation = std::any_of(model.files.begin(), model.files.end(),
                                          [](auto& file) { return file.name == kGenerationName; });
  if (!has_generation) files.push_back({kGenerationName, make_generation_json(model)});
  for (const TextFile& file : model.files) {
    require(!file.name.empty() && file.name.find('/') == std::string::npos &&
                file.name != kConfigName && !is_weights_file(file.name),
            ErrorKind::internal, "a file named \"{}\" cannot travel with a model", file.name);
    files.push_back(file);
  }
  return files;
}

std::vector<WrittenFile> write_text_files(const std::filesystem::path& folder,
                                          std::span<const TextFile> files) {
  std::vector<WrittenFile> written;
  for (const TextFile& file : files) {
    io::write_file(folder / file.name, file.contents);
    written.push_back(
        {file.name, {file.contents.size(), io::crc64(std::as_bytes(std::span(file.contents)))}});
  }
  return written;
}

std::uint64_t total_bytes(std::span<const TextFile> files) {
  std::uint64_t bytes = 0;
  for (const TextFile& file : files) bytes += file.contents.size();
  return bytes;
}

bool is_model_file(const std::string& name) {
  return name == kConfigName || name == kGenerationName || is_weights_file(name) ||
         data::is_tokenizer_file(name);
}

std::vector<std::filesystem::path> model_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  if (!has_model(folder)) return files;
  // config.json first: without it the rest is no model, whatever a kill leaves.
  for (const char* name : {kConfigName, kGenerationName}) {
    if (io::is_there(folder / name)) files.push_back(folder / name);
  }
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    if (is_weights_file(entry.path().filename().string())) files.push_back(entry.path());
  }
  return files;
}

std::uint64_t write_model_folder(const std::filesystem::path& folder, const ModelDescription& model,
                                 std::span<const TensorShape> tensors, StateSource& source,
                                 const WriteOptions& options) {
  io::make_folder(folder);
  const ShardOptions shards{.dtype = model.dtype, .shard_bytes_max = options.shard_bytes_max};
  const std::vector<TextFile> files = description_files(model);
  const std::uint64_t bytes = ShardWriter::total_bytes(tensors, shards) + total_bytes(files);
  require_free_space(folder, bytes, ErrorKind::io);
  const StagingFolder staging(folder, kModelStaging);
  ProgressMeter progress(options.progress, bytes);
  ShardWriter writer(staging.path(), tensors, shards);
  HeldValues held(source, model.dtype);
  std::vector<float> buffer;
  for (const TensorShape& tensor : tensors) {
    for_each_piece(tensor.elements(), buffer, [&](std::int64_t first, std::span<float> values) {
      held.read(StateKind::master, tensor.name, first, values);
      writer.write(values);
      progress.advance(tensor.name, values.size() * size_of(model.dtype));
    });
  }
  held.require_all_held(fmt::format("the model is not written to {}", folder.string()));
  (void)writer.commit();
  (void)write_text_files(staging.path(), files);
  progress.advance("the new model takes its place", 0);
  move_into_place(staging.path(), folder);
  return bytes;
}

}  // namespace terrace::checkpoint
