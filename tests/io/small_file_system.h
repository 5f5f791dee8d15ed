#pragma once

#include <sys/mount.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "terrace/core/units.h"

namespace terrace::testing {

/// A file system of 64 MiB in a file below `folder`, which lets files have holes instead of
/// reserved space, so that a write into space that seemed reserved can fail. Where mounting is
/// impossible (it takes root, a loop device and mkfs.ext2) `mounted` says so.
class SmallFileSystem {
 public:
  explicit SmallFileSystem(const std::filesystem::path& folder) : mount_(folder / "mount") {
    std::filesystem::create_directory(mount_);
    const std::string image = folder / "image";
    std::ofstream(image).close();
    std::filesystem::resize_file(image, 64 * kMiB);
    mounted_ = ::geteuid() == 0 && std::system(("PATH=$PATH:/usr/sbin:/sbin; mkfs.ext2 -q -F " +
                                                image + " >/dev/null 2>&1 && mount -o loop " +
                                                image + " " + mount_.string() + " >/dev/null 2>&1")
                                                   .c_str()) == 0;
  }
  ~SmallFileSystem() {
    if (mounted_) ::umount2(mount_.c_str(), MNT_DETACH);
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;

  [[nodiscard]] bool mounted() const { return mounted_; }
  [[nodiscard]] const std::filesystem::path& path() const { return mount_; }

  /// Writes a file that leaves at most `free_bytes` of space free.
  void fill(std::uint64_t free_bytes) const {
    std::ofstream hog(hog_path(), std::ios::binary);
    const std::vector<char> filler(64 * kKiB, 'x');
    while (std::filesystem::space(mount_).free > free_bytes &&
           hog.write(filler.data(), static_cast<std::streamsize>(filler.size())).flush()) {
    }
  }
  /// Gives the space of `fill` back.
  void empty() const { std::filesystem::remove(hog_path()); }

 private:
  [[nodiscard]] std::filesystem::path hog_path() const { return mount_ / "hog"; }

  std::filesystem::path mount_;
  bool mounted_ = false;
};

/// A file system of `bytes` in memory over the folder, as long as this lives; `mounted` says
/// whether it could be made (it takes root).
class SmallMemory {
 public:
  SmallMemory(const std::filesystem::path& folder, std::uint64_t bytes)
      : folder_(folder),
        mounted_(::mount("none", folder.c_str(), "tmpfs", 0,
                         ("size=" + std::to_string(bytes)).c_str()) == 0) {}
  ~SmallMemory() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallMemory(const SmallMemory&) = delete;
  SmallMemory& operator=(const SmallMemory&) = delete;

  [[nodiscard]] bool mounted() const { return mounted_; }

 private:
  std::filesystem::path folder_;
  bool mounted_;
};

}  // namespace terrace::testing
