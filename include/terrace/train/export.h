#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "terrace/core/dtype.h"
#include "terrace/core/log.h"
#include "terrace/train/watch.h"

namespace terrace::train {

struct ExportOptions {
  std::filesystem::path from;  ///< a checkpoint, or an output folder (its newest one)
  std::filesystem::path to;    ///< a new or empty folder
  std::optional<DType> dtype;  ///< of the weights; empty: the checkpoint's
  /// Weights that are too large for the type become its largest number; they are an error
  /// otherwise.
  bool saturate = false;
};

struct Exported {
  std::int64_t step = 0;
  DType dtype = DType::bf16;
  std::uint64_t bytes = 0;
};

/// Writes the model of a checkpoint as a Hugging Face folder, its weights rounded from the masters.
/// Nothing is left of one that fails.
/// Errors: usage for a folder that is not empty; numerics, naming the first tensor and value, for
/// weights that the type does not hold; data for weights that are not finite; as
/// `checkpoint::TrainingCheckpoint`, `checkpoint::write_model_folder`. Throws `Stopped` when
/// `watch` is asked to stop.
Exported export_model(const ExportOptions& options, Watch& watch, Log& log);

}  // namespace terrace::train
