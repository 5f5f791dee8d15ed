#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/unique_handle.h"
#include "terrace/io/run_id.h"

namespace terrace::io {

enum class RunLiveness : std::uint8_t {
  live,     ///< its process holds the lock, or is another one that exists on this host
  dead,     ///< its process is gone
  unknown,  ///< it held no lock that could be seen from here, and may live: only its user can know
};

/// "live", "dead" or "unknown".
[[nodiscard]] std::string_view name_of(RunLiveness liveness);

/// What a lock file says of the run that wrote it.
struct LockRecord {
  std::string owner;  ///< what the run is, in its own words
  StoreId id;         ///< whose the folder is
  std::string host;
  std::int64_t pid = 0;
  std::string since;  ///< UTC
  std::vector<std::filesystem::path> folders;
  RunLiveness liveness = RunLiveness::dead;

  /// "process 7 on node3, since ...": for messages.
  [[nodiscard]] std::string holder() const;
};

/// Reads a lock file, and takes nothing. One that is missing or says nothing is a dead run's,
/// unless somebody holds it, who is about to say.
[[nodiscard]] LockRecord read_lock(const std::filesystem::path& file);

/// What is kept in a lock file.
struct LockContents {
  std::string owner;
  StoreId id;
  std::vector<std::filesystem::path> folders = {};
};

/// A folder's lock file, held as long as this object lives; the kernel lets it go when the process
/// dies, however it dies. The file says who holds it and stays behind, unless `remove` is called.
/// Single-owner.
///
/// Note "A record is whole". A record is never altered. The next one is written to a file beside
/// it, which is locked and made durable before it takes the name; so at any instant the name is of
/// a locked file with a whole record, the old or the new. Whoever waited at the old file finds that
/// it has lost its name, and looks again. A file that says nothing is one whose first record was
/// cut short. A drive that is full, or a kill, leaves what was there.
class FolderLock {
 public:
  /// Makes the file where it is not there and takes its lock, but leaves what it says. None where
  /// somebody else has it, or where the folder is gone. Where locks do not work, `unlocked` says
  /// that the caller knows of nobody else. Errors: `usage` where locks do not work, unless
  /// `unlocked`; `io`.
  [[nodiscard]] static std::optional<FolderLock> take(const std::filesystem::path& file,
                                                      bool unlocked = false);
  /// The same, and writes who has it. Errors: `usage`, also when the run that the file names lives
  /// or may live (unless `unlocked`), naming it; `io`.
  FolderLock(const std::filesystem::path& file, const LockContents& contents,
             bool unlocked = false);

  /// Replaces what the file says. Errors: `io`; then it says what it said.
  void write(const LockContents& contents);
  /// Deletes the file and lets the lock go.
  void remove() noexcept;

 private:
  FolderLock() = default;

  std::filesystem::path file_;
  FileDescriptor descriptor_;
  bool locked_ = true;  ///< false: the file system has no locks
};

}  // namespace terrace::io
