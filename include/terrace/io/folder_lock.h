#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/unique_handle.h"

namespace terrace::io {

enum class RunLiveness : std::uint8_t {
  live,     ///< its process holds the lock, or is another one that exists on this host
  dead,     ///< its process is gone
  unknown,  ///< made on another host, and its lock is not held: only its user can know
};

/// "live", "dead" or "unknown".
[[nodiscard]] std::string_view name_of(RunLiveness liveness);

/// What a lock file says of the run that wrote it.
struct LockRecord {
  std::string owner;  ///< what the run is, in its own words
  std::string host;
  std::int64_t pid = 0;
  std::string since;  ///< UTC
  std::vector<std::filesystem::path> folders;
  RunLiveness liveness = RunLiveness::dead;
};

/// Reads a lock file. One that is missing or says nothing is a dead run's.
[[nodiscard]] LockRecord read_lock(const std::filesystem::path& file);

/// A folder's lock file, held as long as this object lives; the kernel lets it go when the process
/// dies, however it dies. The file says who holds it and stays behind, unless `remove` is called.
/// Single-owner.
class FolderLock {
 public:
  /// Makes the file where it is not there, takes its lock and writes who has it; `folders` are kept
  /// with that. Errors: `usage`, naming the run that holds it; `io`.
  FolderLock(std::filesystem::path file, std::string_view owner,
             std::span<const std::filesystem::path> folders = {});

  /// Deletes the file and lets the lock go.
  void remove() noexcept;

 private:
  void open_locked();

  std::filesystem::path file_;
  FileDescriptor descriptor_;
};

/// Takes the lock of an open file or folder. False when another process holds it; true as well
/// where the file system has no locks: what the lock file says then has to do.
bool try_lock(int descriptor, bool wait);

}  // namespace terrace::io
