#pragma once

#include <filesystem>
#include <vector>

#include "terrace/core/unique_handle.h"
#include "terrace/io/driver.h"

namespace terrace::io {

/// Note "I/O of the dead". A killed process's io_uring transfers may reach the drive after the
/// process is gone: nothing waits for them, and one that lands late would overwrite what its
/// successor wrote. But each keeps its open file, and with it that file's lock. So every file here
/// is opened under a shared lock (see the note "Locks"), and who takes a file over waits until it
/// could have the exclusive one. Nobody else makes or takes over a file meanwhile: its folder is
/// locked.

/// The open files of a driver that works on real ones. Single-owner.
class FileTable {
 public:
  /// As `Driver::open`.
  OpenedFile open(const std::filesystem::path& path, const OpenOptions& options);
  /// As `Driver::use_page_cache`.
  void use_page_cache(FileId file);

  [[nodiscard]] std::uint64_t size_of(FileId file) const;
  [[nodiscard]] int descriptor(FileId file) const { return at(file).descriptor.get(); }
  [[nodiscard]] int count() const { return static_cast<int>(files_.size()); }

 private:
  struct File {
    std::filesystem::path path;
    FileDescriptor descriptor;
  };
  [[nodiscard]] const File& at(FileId file) const {
    return files_[static_cast<std::size_t>(file.value)];
  }

  std::vector<File> files_;
};

/// Waits until no other open file, of a dead or a live process, can write to `path`; see the note
/// "I/O of the dead". Errors: `io`, after ten seconds.
void wait_for_silence(const std::filesystem::path& path);

}  // namespace terrace::io
