#pragma once

#include <filesystem>
#include <vector>

#include "terrace/core/unique_handle.h"
#include "terrace/io/driver.h"

namespace terrace::io {

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

}  // namespace terrace::io
