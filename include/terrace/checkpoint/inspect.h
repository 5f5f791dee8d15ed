#pragma once

#include <filesystem>
#include <string>

#include "terrace/checkpoint/state.h"

namespace terrace::checkpoint {

struct InspectOptions {
  /// Verify the checksum of every byte of a checkpoint, or of all of an output folder, not only
  /// sizes and small files.
  bool verify = false;
  ProgressFunction progress = {};
};

/// A description for people and the same facts for programs.
struct Inspection {
  std::string text;  ///< lines; lists of tensors only for a single file
  std::string json;  ///< one object: "kind" and "path" first, every tensor with dtype and shape
};

/// Describes what a path holds: a safetensors file, a checkpoint, a model folder, a folder of
/// checkpoints (an output folder; broken ones with their fault), or a page store's folder. Reads
/// headers only, unless `verify`. A live run's store may be looked at.
/// Errors: data for anything else; corrupt for a checkpoint or store that is damaged, naming the
/// file; usage for `verify` of what has no checksums; io.
[[nodiscard]] Inspection inspect(const std::filesystem::path& path,
                                 const InspectOptions& options = {});

}  // namespace terrace::checkpoint
