#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "terrace/core/log.h"
#include "terrace/engine/settings.h"
#include "terrace/io/folder_lock.h"

namespace terrace::engine {

/// The output folder of a run: whose it is while the run lasts, and what of an earlier run in it
/// goes when `--overwrite_output_dir` says so. Single-owner.
class OutputFolder {
 public:
  /// Looks at the folder. Where it is there, takes its lock and clears up after saves that a kill
  /// cut short; a dry run does neither. Errors: `usage` when it or what it is to lie in is a file,
  /// when it belongs to a run that is live, or holds something that the settings say nothing of;
  /// `io`, also when it cannot be written to.
  OutputFolder(const OutputSettings& settings, Log& log);
  /// Lets the lock go.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Refuses what the run reads from where `clear` would delete it. Errors: `usage`.
  void require_kept(const std::filesystem::path& source) const;
  /// Refuses a file, "" for none, that is to be written at the run's end and cannot be; a folder
  /// that is not there may be one that `make` makes. Errors: `usage`, `io`.
  void require_place_of_trace(const std::filesystem::path& file) const;
  /// Bytes that `clear` will give back.
  [[nodiscard]] std::uint64_t bytes_to_clear() const;
  /// What `run.json` says of the run that last wrote to the folder; nothing where there is none.
  struct LastRun {
    std::vector<std::filesystem::path> swap = {};  ///< which need not be there any more
    bool commits_every_step = false;
    bool finished = false;
  };
  [[nodiscard]] LastRun last_run() const;

  /// Makes the folder, if it is not there, and takes its lock. Errors: as the constructor.
  void make();
  /// Deletes what `--overwrite_output_dir` means, and says what: the checkpoints, the final model,
  /// `metrics.jsonl` and `run.json`. Other files in the folder stay. Errors: `io`.
  void clear();

 private:
  void lock();
  [[nodiscard]] std::vector<std::filesystem::path> to_clear() const;

  std::filesystem::path path_;
  bool resumes_ = false;
  bool overwrites_ = false;
  Log& log_;
  std::optional<io::FolderLock> lock_;
};

}  // namespace terrace::engine
