#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "terrace/data/dataset.h"

namespace terrace::data {

/// A file to be read as data.
struct ListedFile {
  std::filesystem::path path;
  std::size_t argument = 0;  ///< place in the list of what the user named
  bool is_named = false;     ///< itself, not a folder above it
  std::uint64_t bytes = 0;   ///< 0 where that cannot be seen
};

struct FileList {
  std::vector<ListedFile> files;
  std::vector<std::filesystem::path> hidden;    ///< in folders, names that begin with a dot
  std::vector<std::filesystem::path> links;     ///< in folders, links to folders: not followed
  std::vector<std::filesystem::path> own;       ///< for which `is_own` holds
  std::vector<std::filesystem::path> repeated;  ///< reached twice, listed once
};

/// The files that `paths` name, folders walked to the bottom. The order is that of `paths`, and in
/// a folder that of the names, byte by byte, whatever the file system's order is. What is neither a
/// file nor a folder (sockets, devices, broken links) is listed when it is in a folder, so that its
/// reading fails and is counted.
/// Errors: data, when a path is missing, no file or folder, or a folder cannot be read.
[[nodiscard]] FileList list_files(std::span<const std::filesystem::path> paths,
                                  const DatasetOptions& options);

}  // namespace terrace::data
