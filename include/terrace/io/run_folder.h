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

/// Note "Whose a folder is". A store lies in a folder of its own on each of its drives. The id of
/// its run and a number of the store's own stand in every folder's lock, in the head of its page
/// file and in the manifest. The files are written once, and count before the lock, which may be
/// deleted. Paths, names, hosts and process numbers decide nothing: two containers have the same.
///
/// A folder is in one of these states, and a kill leaves it there:
///   absent
///   being made     no manifest yet, so nothing is lost with it
///   whole          the manifest has its name, in the first folder
///   being removed  the manifest went first: nothing is lost with it
/// Whoever makes, adopts or removes a store holds the locks of its folders, taken in the store's
/// order and never waited for, and looks at each folder again once its lock is held. A folder that
/// is another store's, or whose lock somebody holds, stays as it is. So on every drive the three
/// exclude each other, and nothing else is needed: no lock of the drive, and none of the list.
/// Between making a folder and locking it a remover may come first; then its maker takes another
/// name. A folder of the run's own name that holds locks alone, and no id, is what a kill left
/// there, or at the end of a removal: the run takes it again.

/// What a run's folder says of itself.
struct RunRecord {
  std::filesystem::path path;  ///< this folder
  std::string owner;           ///< what the run is, in its own words (see `RunFolder::create`)
  StoreId id;                  ///< whose it is; none of what was made without, or says nothing
  std::string host;
  std::int64_t pid = 0;
  std::string since;  ///< UTC
  /// This folder and its siblings on other drives, in order; the page store's manifest lies in the
  /// first.
  std::vector<std::filesystem::path> folders;
  bool is_first = true;     ///< of them
  std::uint64_t bytes = 0;  ///< that this folder takes on its disk
  RunLiveness liveness = RunLiveness::unknown;

  /// "process 7 on node3, since ...": for messages.
  [[nodiscard]] std::string holder() const;
};

/// Whether two names are one folder's, however they are written; of folders that are not there, as
/// far as the names say.
[[nodiscard]] bool is_same_folder(const std::filesystem::path& a, const std::filesystem::path& b);

/// Refuses to take one folder for two drives. Errors: `usage`, naming `option`, whose folders they
/// are, and the folder.
void require_distinct_folders(std::string_view option,
                              std::span<const std::filesystem::path> folders);

/// Whether a folder bears the name that runs give to theirs.
[[nodiscard]] bool is_run_folder(const std::filesystem::path& path);

/// The folders below `base` that runs made and have not removed; or `base` alone where it is one.
/// Takes no lock. Errors: `usage` when there is no such folder, `io`.
[[nodiscard]] std::vector<RunRecord> list_run_folders(const std::filesystem::path& base);

/// Bytes that the folder and its siblings take on their disks by now.
[[nodiscard]] std::uint64_t bytes_of(const RunRecord& record);

/// What a store's folders hold and the folders themselves, in the order in which they are removed
/// one by one: first the manifest, without which the rest is no store, last the record that names
/// the run, with its folder. So what a kill leaves is the whole store, or leftovers of a dead run
/// that are listed, found by their id and cleaned as such. Of folders that are gone there is
/// nothing. Errors: `io`.
[[nodiscard]] std::vector<std::filesystem::path> removal_order(
    std::span<const std::filesystem::path> folders);

/// What became of a store that was to be removed.
struct Removal {
  std::uint64_t bytes = 0;        ///< that are free again
  std::vector<std::string> kept;  ///< siblings by name that are left alone, a sentence each
};

/// Removes a dead run's folder with those of its siblings that are the same store's, in
/// `removal_order`, or an `unknown` one when `force` says that its user knows. One that is gone is
/// no error. Errors: `usage` when any of them is not dead, and then nothing is removed; `io`.
Removal remove_run_folder(const RunRecord& record, bool force = false);

struct RunFolderOptions {
  /// What the run is, for people, as "rank 0 of /home/me/output".
  std::string owner = {};
  /// By which it finds its folder again; one is drawn where there is none.
  RunId run = {};
  /// Go on below a tmpfs, where "disk" is memory.
  bool allow_memory = false;
  /// Go on where locks do not work: the user knows of no other run.
  bool unlocked = false;
};

/// A run's own sub-folder on each of its drives, under a lock that is held as long as this object
/// lives and that the kernel lets go when the process dies, however it dies. Destruction leaves the
/// files: a dead or interrupted run's store can be adopted. Single-owner.
class RunFolder {
 public:
  /// Makes a sub-folder in each of `bases`. Errors: `usage` when a base is missing, lies in memory
  /// or has no locks, `io` when it is read-only.
  [[nodiscard]] static RunFolder create(std::span<const std::filesystem::path> bases,
                                        const RunFolderOptions& options);
  /// Takes over a dead run's folders, which then say so; the id stays. Errors: `usage` when the run
  /// lives or may live, when the store has vanished, or a folder of it is gone or another's; `io`.
  /// Then every folder says what it said, or who took it.
  [[nodiscard]] static RunFolder adopt(const RunRecord& record, const RunFolderOptions& options);
  /// What the run has left below `bases`, live or dead, the newest first: of each store its first
  /// folder, whatever the order of `bases` was then.
  [[nodiscard]] static std::vector<RunRecord> find(std::span<const std::filesystem::path> bases,
                                                   const RunId& run);

  /// One a base, in their order.
  [[nodiscard]] std::span<const std::filesystem::path> paths() const { return paths_; }
  /// For the page store in it.
  [[nodiscard]] const StoreId& id() const { return id_; }

  /// Deletes the folders with all they hold, in `removal_order`: the run is finished. Errors: `io`.
  void remove();

 private:
  RunFolder() = default;
  /// False where the name is taken, or somebody came between.
  [[nodiscard]] bool make(std::span<const std::filesystem::path> bases, const std::string& name,
                          bool unlocked);
  void write_records(const std::string& owner);

  StoreId id_;
  std::vector<std::filesystem::path> paths_;
  std::vector<FolderLock> locks_;  ///< of the paths
};

}  // namespace terrace::io
