#include "terrace/checkpoint/model_folder.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "model_writer.h"
#include "progress.h"
#include "staging.h"
#include "tensor_match.h"
#include "terrace/core/json.h"
#include "terrace/core/units.h"
#include "terrace/io/file.h"
#include "terrace/io/free_space.h"

namespace terrace::checkpoint {
namespace {

constexpr const char* kStem = "model";

/// Opens the folder's weights, or says what is there instead of them.
ShardReader open_weights(const std::filesystem::path& folder) {
  if (ShardReader::is_present(folder, kStem)) return {folder, kStem, ErrorKind::data};
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    const bool is_pickle = name.ends_with(".bin") || name.ends_with(".pt") ||
                           name.ends_with(".pth") || name.ends_with(".ckpt");
    require(!is_pickle, ErrorKind::data,
            "{} has its weights as a pickle, {}, which can run code and is not read; convert it "
            "once with AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(DIR, "
            "safe_serialization=True) in Python",
            folder.string(), name);
  }
  fail(ErrorKind::data,
       "{} has no weights; model.safetensors or model.safetensors.index.json was looked for",
       folder.string());
}

std::vector<Remark> stray_files(const ShardReader& shards, const std::filesystem::path& folder) {
  std::set<std::string> strays;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors")) strays.insert(name);
  }
  for (const SafetensorsFile& file : shards.files()) {
    strays.erase(file.path().filename().string());
  }
  std::vector<Remark> remarks;
  for (const std::string& name : strays) {
    remarks.push_back(
        {LogLevel::info,
         fmt::format("{} in {} is not part of the model and is ignored", name, folder.string())});
  }
  return remarks;
}

/// Whether two stored tensors have the same values.
bool are_equal(const ShardReader::Located& left, const ShardReader::Located& right) {
  if (left.entry->shape != right.entry->shape) return false;
  bool equal = true;
  std::vector<float> buffer;
  std::vector<float> other(static_cast<std::size_t>(kPieceElements));
  for_each_piece(left.entry->elements(), buffer, [&](std::int64_t first, std::span<float> values) {
    if (!equal) return;
    const std::span others = std::span(other).first(values.size());
    left.file->read(*left.entry, first, values);
    right.file->read(*right.entry, first, others);
    equal = std::equal(values.begin(), values.end(), others.begin());
  });
  return equal;
}

}  // namespace

ModelWeights::ModelWeights(const std::filesystem::path& folder, const model::Config& config,
                           std::span<const TensorShape> expected, const WeightsOptions& options)
    : shards_(open_weights(folder)), remarks_(stray_files(shards_, folder)) {
  remarks_.insert(remarks_.end(), shards_.remarks().begin(), shards_.remarks().end());
  TensorMatch match = match_tensors(shards_, expected, config, options);
  require_match(match, folder.string(), ErrorKind::data);
  for (const std::string& name : match.ignored) {
    remarks_.push_back({LogLevel::warning, fmt::format("tensor \"{}\" in {} is not used, as asked",
                                                       name, folder.string())});
  }
  by_name_ = std::move(match.found);
  remark_on_tied_head(config);
}

void ModelWeights::remark_on_tied_head(const model::Config& config) {
  const auto head = shards_.find(kHeadName);
  if (!config.tie_word_embeddings || !head) return;
  const auto embedding = by_name_.find(std::string(embedding_name(config)));
  if (embedding == by_name_.end() || are_equal(*head, embedding->second)) return;
  remarks_.push_back(
      {LogLevel::warning,
       fmt::format("{}: lm_head.weight differs from the embedding, but config.json ties them "
                   "(tie_word_embeddings); the embedding is used for both and lm_head.weight is "
                   "dropped. If the model has a head of its own, set tie_word_embeddings to false",
                   head->file->path().string())});
}

void ModelWeights::read(StateKind kind, const std::string& tensor, std::int64_t first,
                        std::span<float> values) {
  require(kind == StateKind::parameter || kind == StateKind::master, ErrorKind::internal,
          "a model folder has no {}", terrace::name_of(kind));
  const auto found = by_name_.find(tensor);
  require(found != by_name_.end(), ErrorKind::internal, "the model has no tensor \"{}\"", tensor);
  found->second.read(first, values);
}

bool has_model(const std::filesystem::path& folder) {
  return io::is_there(folder / "config.json", ErrorKind::data) &&
         ShardReader::is_present(folder, kStem);
}

void require_free_space(const std::filesystem::path& folder, std::uint64_t needed, ErrorKind kind) {
  const std::uint64_t available = io::free_bytes(folder);
  require(available >= needed, kind,
          "{} needs {} ({} bytes) free, but has {} ({} bytes); free some space, write elsewhere "
          "(--output) or keep fewer checkpoints (--save_total_limit)",
          folder.string(), format_bytes(needed), needed, format_bytes(available), available);
}

}  // namespace terrace::checkpoint
