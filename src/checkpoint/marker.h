#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "terrace/checkpoint/shards.h"

namespace terrace::checkpoint {

/// What the marker of a checkpoint says: that the folder is complete, and what it holds.
struct Marker {
  std::int64_t step = 0;
  std::vector<WrittenFile> files;
};

/// Writes the marker into `folder`, durably. Errors: io.
void write_marker(const std::filesystem::path& folder, const Marker& marker);

/// Errors: data, when there is none; corrupt, when it is damaged or of a later format.
[[nodiscard]] Marker read_marker(const std::filesystem::path& folder);

/// Checks that every file is there in its size. Errors: corrupt, naming the first that is not.
void require_sizes(const std::filesystem::path& folder, const Marker& marker);

}  // namespace terrace::checkpoint
