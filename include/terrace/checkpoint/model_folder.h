#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "terrace/checkpoint/shards.h"
#include "terrace/checkpoint/state.h"
#include "terrace/core/dtype.h"
#include "terrace/model/config.h"

// A model as a Hugging Face folder: config.json, safetensors, and files that only travel along.

namespace terrace::checkpoint {

/// What a `config.json` says.
struct FolderConfig {
  model::Config config;
  std::optional<DType> dtype;  ///< "dtype" or "torch_dtype": what the weights were saved in
  std::optional<std::int64_t> bos_token_id;
  std::vector<std::int64_t> eos_token_ids;  ///< from `generation_config.json` where it has them
  std::string json;                         ///< the text itself
  std::vector<Remark> remarks;              ///< keys that are read and have no effect
};

/// Reads and checks `folder/config.json`; weights are not looked at, and need not be there.
/// Errors: data, naming the key, what was found and what is supported: an architecture other than
/// LlamaForCausalLM and GPT2LMHeadModel; a key that changes the mathematics with a value that is
/// not built (scaled rotary positions, sliding windows, biases, other activations, quantisation);
/// a size that is missing or impossible (`model::validate`).
[[nodiscard]] FolderConfig read_config(const std::filesystem::path& folder);

/// The same for the text of a `config.json`; `where` is named in messages.
[[nodiscard]] FolderConfig parse_config(std::string_view json, std::string_view where);

/// A number that differs between any two configurations that differ. Not a secret, not a
/// signature.
[[nodiscard]] std::uint64_t fingerprint_of(const model::Config& config);

struct WeightsOptions {
  /// Shell patterns (`*`, `?`) of tensors that the model has no use for and that may be ignored.
  std::vector<std::string> ignore_unused;
};

/// The weights of a model folder, found and checked against what the model needs before a value is
/// read. Names may lack the architecture's prefix ("transformer." of GPT-2, "model." of Llama), as
/// folders saved from the bare model do; buffers that are no weights are ignored; a tied head that
/// is stored all the same must equal the embedding, or a warning says so.
/// Thread-safe.
///
/// Errors: data: no safetensors (with a hint where there are pickles, which are never read); as
/// `ShardReader`; tensors that are missing, unexpected or of another shape, the first five of each
/// side by side.
class ModelWeights : public StateSource {
 public:
  /// `expected` is every parameter of the model that `config` describes.
  ModelWeights(const std::filesystem::path& folder, const model::Config& config,
               std::span<const TensorShape> expected, const WeightsOptions& options = {});

  /// `parameter` and `master` alike: the stored value, exactly. Errors: data, naming file and
  /// tensor, for values that are not finite.
  void read(StateKind kind, const std::string& tensor, std::int64_t first,
            std::span<float> values) override;

  [[nodiscard]] const ShardReader& shards() const { return shards_; }
  [[nodiscard]] std::span<const Remark> remarks() const { return remarks_; }

 private:
  void remark_on_tied_head(const model::Config& config);

  ShardReader shards_;
  std::unordered_map<std::string, ShardReader::Located> by_name_;  ///< by the model's names
  std::vector<Remark> remarks_;
};

/// A file that travels with a model: a tokenizer's.
struct TextFile {
  std::string name;
  std::string contents;
};

/// All of a model folder but the weights.
struct ModelDescription {
  model::Config config;
  DType dtype = DType::bf16;  ///< of the weights: f32, bf16 or f16
  /// The `config.json` that the model came with, if any: keys that Terrace does not set stay.
  std::string base_json = {};
  std::optional<std::int64_t> bos_token_id = {};
  std::vector<std::int64_t> eos_token_ids = {};
  std::vector<TextFile> files = {};
};

/// The text of the folder's `config.json`.
[[nodiscard]] std::string make_config_json(const ModelDescription& model);

struct WriteOptions {
  std::uint64_t shard_bytes_max = kShardBytesMax;
  ProgressFunction progress = {};  ///< may be empty
};

/// Writes a model folder, streaming the weights from the masters of `source` in the order of
/// `tensors`. `folder` may exist and hold other files and an older model: the new one is written
/// beside it and then takes its place, `config.json` removed first and put back last, so that a
/// folder with one is whole at any instant. Returns the bytes written.
/// Errors: numerics, as `HeldValues`, for weights that the model's dtype does not hold; io, naming
/// bytes needed and free when they do not suffice; what `source` throws.
std::uint64_t write_model_folder(const std::filesystem::path& folder, const ModelDescription& model,
                                 std::span<const TensorShape> tensors, StateSource& source,
                                 const WriteOptions& options = {});

/// Whether the folder has a `config.json` and weights (safetensors, whole or not).
[[nodiscard]] bool has_model(const std::filesystem::path& folder);

/// Whether a model folder may have a file of that name: configuration, weights, tokenizer.
[[nodiscard]] bool is_model_file(const std::string& name);

/// The files of the folder's model, its tokenizer's aside, in an order in which they may be
/// removed; none when it has no model.
[[nodiscard]] std::vector<std::filesystem::path> model_files(const std::filesystem::path& folder);

/// Refuses to begin writing `needed` bytes into `folder` where fewer are free. Errors: kind `kind`,
/// naming both figures.
void require_free_space(const std::filesystem::path& folder, std::uint64_t needed, ErrorKind kind);

}  // namespace terrace::checkpoint
