#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terrace/checkpoint/model_folder.h"
#include "terrace/checkpoint/shards.h"
#include "terrace/checkpoint/state.h"
#include "terrace/checkpoint/trainer_state.h"

// A training checkpoint: OUTPUT/checkpoint-STEP/ with
//   config.json, generation_config.json, the tokenizer's files   a Hugging Face folder
//   model*.safetensors [+ index]          weights in the compute dtype
//   optimizer/master*.safetensors         FP32 masters (absent when the weights are FP32: the same)
//   optimizer/exp_avg*.safetensors        first moments, FP32 (absent where the optimizer has none)
//   optimizer/exp_avg_sq*.safetensors     second moments, FP32 (likewise)
//   trainer_state.json                    `TrainerState`
//   terrace_checkpoint.json               the marker: every other file with its size and checksum
// Tensors have the names and shapes of the Hugging Face folder in all files, so a checkpoint knows
// nothing of ranks, tiers, pages or padding, and any run of the same model can go on from it.
//
// The order of a save: all files under a temporary name, each made durable; the marker as the last
// of them; the folder; then the rename (or, over an older checkpoint of that step, an exchange),
// made durable. So a folder named checkpoint-STEP is complete from its first instant, and one that
// is damaged later does not fit its marker.

namespace terrace::checkpoint {

inline constexpr const char* kMarkerName = "terrace_checkpoint.json";

/// What goes into a checkpoint besides the state itself.
struct CheckpointContents {
  ModelDescription model;
  std::vector<TensorShape> tensors;  ///< all parameters, in the order in which they are streamed
  /// Those that the optimizer keeps.
  std::vector<StateKind> moments = {StateKind::exp_avg, StateKind::exp_avg_sq};
  TrainerState trainer;
};

/// The exact bytes that `save_checkpoint` would write, its marker and folders aside (well under
/// 1 MiB): what the plan and the check before the first step count with.
[[nodiscard]] std::uint64_t checkpoint_bytes(const CheckpointContents& contents,
                                             const WriteOptions& options = {});

/// Writes `output/checkpoint-<global_step>`, streaming each state kind once (master, then the
/// moments) in pieces, and returns its path. Nothing is left of one that fails, and what had
/// the name before is untouched until the new one is whole and durable.
/// Errors: numerics, as `HeldValues`, for state that is not finite as it would be stored; io,
/// naming bytes needed and free when they do not suffice; what `source` throws.
std::filesystem::path save_checkpoint(const std::filesystem::path& output,
                                      const CheckpointContents& contents, StateSource& source,
                                      const WriteOptions& options = {});

/// A checkpoint, opened: every file of the marker is there in its size, and the small ones (all
/// but tensors) have their checksum. Thread-compatible.
/// Errors: corrupt, naming the file, what it has and what the marker says; data, when the folder is
/// no Terrace checkpoint.
class TrainingCheckpoint : public StateSource {
 public:
  explicit TrainingCheckpoint(std::filesystem::path folder);

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] const TrainerState& trainer() const { return trainer_; }
  [[nodiscard]] const FolderConfig& config() const { return config_; }
  [[nodiscard]] DType weights_dtype() const;
  /// The moments that it holds: those of the optimizer that the run had.
  [[nodiscard]] const std::vector<StateKind>& moments() const { return moments_; }
  /// Bytes of all files.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  /// Refuses a checkpoint of other tensors. Errors: corrupt, as `ModelWeights`.
  void require_tensors(std::span<const TensorShape> expected) const;

  /// `parameter` is the stored weight; master and moments are the FP32 values. Errors: data, naming
  /// file and tensor, for values that are not finite.
  void read(StateKind kind, const std::string& tensor, std::int64_t first,
            std::span<float> values) override;

  /// Hands master and moments of every tensor to `sink`, one kind after the other, and
  /// verifies the checksum of every byte of every tensor file on the way: when it returns, all that
  /// the sink has is what was saved; when it throws, the sink's state is of no use.
  /// Errors: corrupt, naming the file; what `sink` throws.
  void restore(StateSink& sink, const ProgressFunction& progress = {}) const;

  /// Verifies the checksum of every file. Errors: corrupt, naming the file.
  void verify(const ProgressFunction& progress = {}) const;

 private:
  [[nodiscard]] const ShardReader& shards(StateKind kind) const;
  /// Master and moments.
  [[nodiscard]] std::vector<StateKind> state_kinds() const;
  void check_checksum(const std::string& name, const io::Fingerprint& found) const;

  std::filesystem::path folder_;
  std::vector<WrittenFile> files_;  ///< the marker's
  std::uint64_t bytes_ = 0;
  TrainerState trainer_;
  FolderConfig config_;
  std::vector<StateKind> moments_;
  std::optional<ShardReader> weights_, master_, exp_avg_, exp_avg_sq_;
};

/// Verifies the checksums of the weights of `folder` where it is a checkpoint; any other model
/// folder has none. Errors: corrupt, naming the file; io.
void verify_weights(const std::filesystem::path& folder, const ProgressFunction& progress = {});

}  // namespace terrace::checkpoint
