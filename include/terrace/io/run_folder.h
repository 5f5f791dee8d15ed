#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/io/folder_lock.h"

namespace terrace::io {

/// What a run's folder says of itself.
struct RunRecord {
  std::filesystem::path path;  ///< this folder
  std::string owner;           ///< what the run is, in its own words (see `RunFolder::create`)
  std::string host;
  std::int64_t pid = 0;
  std::string since;  ///< UTC
  /// This folder and its siblings on other drives, in order; the page store's manifest lies in the
  /// first.
  std::vector<std::filesystem::path> folders;
  std::uint64_t bytes = 0;  ///< that this folder takes on its disk
  RunLiveness liveness = RunLiveness::unknown;
};

/// Whether two names are one folder's, however they are written; of folders that are not there, as
/// far as the names say.
[[nodiscard]] bool is_same_folder(const std::filesystem::path& a, const std::filesystem::path& b);

/// Refuses to take one folder for two drives. Errors: `usage`, naming `option`, whose folders they
/// are, and the folder.
void require_distinct_folders(std::string_view option,
                              std::span<const std::filesystem::path> folders);

/// The folders below `base` that runs made and have not removed. Errors: `usage` when there is no
/// such folder, `io`.
[[nodiscard]] std::vector<RunRecord> list_run_folders(const std::filesystem::path& base);

/// Bytes that the folder and its siblings take on their disks by now.
[[nodiscard]] std::uint64_t bytes_of(const RunRecord& record);

/// What a run's folders hold and the folders themselves, in the order in which they are removed one
/// by one: first the manifest, without which the rest is no store, last the record that names the
/// run, with its folder. So what a kill leaves is the whole store, or leftovers of a dead run that
/// are listed, found by their owner and cleaned as such. Of folders that are gone there is nothing.
/// Errors: `io`.
[[nodiscard]] std::vector<std::filesystem::path> removal_order(
    std::span<const std::filesystem::path> folders);

/// Removes a dead run's folder with its siblings, in `removal_order`, or an `unknown` one when
/// `force` says that its user knows. Returns the bytes that are free again. Errors: `usage` when it
/// is not dead; `io`.
std::uint64_t remove_run_folder(const RunRecord& record, bool force = false);

struct RunFolderOptions {
  /// What the run is: it finds its folder again by this, as "rank 0 of /home/me/output".
  std::string owner;
  /// Go on below a tmpfs, where "disk" is memory.
  bool allow_memory = false;
};

/// A run's own sub-folder on each of its drives, under a lock that is held as long as this object
/// lives and that the kernel lets go when the process dies, however it dies. Destruction leaves the
/// files: a dead or interrupted run's store can be adopted. Single-owner.
class RunFolder {
 public:
  /// Makes a sub-folder in each of `bases`. Errors: `usage` when a base is missing or lies in
  /// memory, `io` when it is read-only.
  [[nodiscard]] static RunFolder create(std::span<const std::filesystem::path> bases,
                                        const RunFolderOptions& options);
  /// Takes over a dead run's folders. Errors: `usage` when the run is live or a folder is gone.
  [[nodiscard]] static RunFolder adopt(const RunRecord& record, const RunFolderOptions& options);
  /// The newest folder below `bases` that `owner` left and that is not live, whatever the order of
  /// `bases` was then.
  [[nodiscard]] static std::optional<RunRecord> find(std::span<const std::filesystem::path> bases,
                                                     std::string_view owner);

  /// One a base, in their order.
  [[nodiscard]] std::span<const std::filesystem::path> paths() const { return paths_; }

  /// Deletes the folders with all they hold, in `removal_order`: the run is finished. Errors: `io`.
  void remove();

 private:
  RunFolder() = default;
  void lock(const RunFolderOptions& options);

  std::vector<std::filesystem::path> paths_;
  std::vector<FolderLock> locks_;
};

}  // namespace terrace::io
