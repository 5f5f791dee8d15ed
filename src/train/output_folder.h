#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "run_store.h"
#include "terrace/config/settings.h"
#include "terrace/core/log.h"
#include "terrace/io/folder_lock.h"

namespace terrace::train {

/// The output folder of a run: whose it is while the run lasts, and what of an earlier run in it
/// goes when `--overwrite_output_dir` says so. Single-owner.
class OutputFolder {
 public:
  /// Looks at the folder. Where it is there, takes its lock and removes what a run that was killed
  /// had begun to write; a dry run does neither. Errors: `usage` when it or what it is to lie in is
  /// a file, when it belongs to a run that is live, or holds something that the settings say
  /// nothing of; `io`, also when it cannot be written to.
  OutputFolder(const config::OutputSettings& settings, Log& log);
  /// Lets the lock go.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  /// Whether a run writes files or folders of that name directly into its output folder.
  [[nodiscard]] static bool is_name_of_run(const std::string& name);
  /// Whether a folder is a run's output, live or dead, by what it holds.
  [[nodiscard]] static bool is_output(const std::filesystem::path& folder);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Names the run whose folder this is: what `run.json`, else the lock that a kill left, else the
  /// newest checkpoint says; one is drawn where nothing does. A copy of the folder has it too.
  [[nodiscard]] const io::RunId& run_id() const { return run_; }
  /// Whose a store of this folder's run is.
  [[nodiscard]] StoreOwner store_owner(const io::RunId& run) const;
  /// The output folder of which such words speak; empty for others.
  [[nodiscard]] static std::filesystem::path output_of(const std::string& owner_words);
  /// The id in the `run.json` of a folder; none where it has none.
  [[nodiscard]] static io::RunId id_in(const std::filesystem::path& folder);

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

  /// Makes the folder, if it is not there, takes its lock, and keeps the id of its run there:
  /// before the run leaves anything elsewhere that is to be found by it. Errors: as the
  /// constructor.
  void make(const io::RunId& run);
  /// Deletes what `--overwrite_output_dir` means, and says what: the checkpoints, the final model
  /// and `metrics.jsonl`; of `run.json` the id stays. Other files in the folder stay. Errors: `io`.
  void clear();

 private:
  void lock();
  [[nodiscard]] io::LockContents lock_contents() const;
  void keep_id(bool alone);
  [[nodiscard]] std::vector<std::filesystem::path> to_clear() const;

  std::filesystem::path path_;
  io::RunId run_;
  bool resumes_ = false;
  bool overwrites_ = false;
  bool unlocked_ = false;
  Log& log_;
  std::optional<io::FolderLock> lock_;
};

}  // namespace terrace::train
