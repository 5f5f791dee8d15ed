#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "terrace/checkpoint/model_folder.h"

namespace terrace::checkpoint {

/// Every file of a model folder but its weights, in the order in which they are written.
[[nodiscard]] std::vector<TextFile> description_files(const ModelDescription& model);

/// Writes them durably into `folder` and returns what was written.
[[nodiscard]] std::vector<WrittenFile> write_text_files(const std::filesystem::path& folder,
                                                        std::span<const TextFile> files);

[[nodiscard]] std::uint64_t total_bytes(std::span<const TextFile> files);

}  // namespace terrace::checkpoint
