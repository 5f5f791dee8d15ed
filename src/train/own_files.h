#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "terrace/config/settings.h"

namespace terrace::train {

/// Tells what runs write from what users bring, where the two lie in one folder: checkpoints, the
/// final model and the records of any output folder, page stores, traces, temporary files, and the
/// files that this process logs to. What else lies in an output folder is its user's. Single-owner.
class OwnFiles {
 public:
  explicit OwnFiles(const config::Settings& settings);

  /// Of a file or a folder, however its path is written.
  [[nodiscard]] bool operator()(const std::filesystem::path& path) const;

 private:
  [[nodiscard]] bool is_output(const std::filesystem::path& folder) const;

  std::filesystem::path output_;                           ///< plain; it may not be there yet
  std::filesystem::path trace_;                            ///< likewise
  std::vector<std::pair<dev_t, ino_t>> logs_;              ///< what standard output and error go to
  mutable std::map<std::filesystem::path, bool> outputs_;  ///< of folders that were asked about
};

}  // namespace terrace::train
