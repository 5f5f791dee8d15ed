#include "terrace/io/free_space.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>

#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/entry.h"

namespace terrace::io {
namespace {

dev_t device_of(const std::filesystem::path& folder) {
  struct stat status {};
  const bool found = ::stat(folder.c_str(), &status) == 0;  // Before errno is read.
  require(found, ErrorKind::io, "cannot stat the folder {}: {}", folder.string(),
          errno_name(errno));
  return status.st_dev;
}

}  // namespace

std::uint64_t free_bytes(const std::filesystem::path& folder) {
  struct statvfs found {};
  const bool answered = ::statvfs(folder.c_str(), &found) == 0;
  require(answered, ErrorKind::io, "cannot ask for the free space of {}: {}", folder.string(),
          errno_name(errno));
  return static_cast<std::uint64_t>(found.f_bavail) * found.f_frsize;
}

std::uint64_t free_bytes(std::span<const std::filesystem::path> folders) {
  std::map<dev_t, std::uint64_t> by_device;
  for (const auto& folder : folders) by_device[device_of(folder)] = free_bytes(folder);
  std::uint64_t bytes = 0;
  for (const auto& [device, free] : by_device) bytes += free;
  return bytes;
}

std::vector<std::uint64_t> shares_of_free_bytes(std::span<const std::filesystem::path> folders) {
  std::map<dev_t, std::uint64_t> users;
  for (const auto& folder : folders) ++users[device_of(folder)];
  std::vector<std::uint64_t> shares;
  for (const auto& folder : folders) {
    shares.push_back(free_bytes(folder) / users[device_of(folder)]);
  }
  return shares;
}

bool share_a_file_system(std::span<const std::filesystem::path> folders) {
  std::set<dev_t> devices;
  return !std::ranges::all_of(folders, [&](const std::filesystem::path& folder) {
    return devices.insert(device_of(folder)).second;
  });
}

void require_free_space(std::span<const SpaceNeed> needs) {
  std::map<dev_t, std::uint64_t> by_device;
  for (const SpaceNeed& need : needs) {
    const std::uint64_t needed = by_device[device_of(need.folder)] += need.bytes;
    const std::uint64_t free = free_bytes(need.folder);
    require(needed <= free, ErrorKind::does_not_fit,
            "{} is too full: {} ({} bytes) are needed there, {} ({} bytes) are free; free some "
            "space, or name another folder or several",
            need.folder.string(), format_bytes(needed), needed, format_bytes(free), free);
  }
}

void require_writable_folder(const std::filesystem::path& folder) {
  const Entry found = look_at(folder);
  require(found != Entry::nothing, ErrorKind::usage,
          "the folder {} does not exist; create it, or name another", folder.string());
  require(found == Entry::folder, ErrorKind::usage, "{} is not a folder", folder.string());
  const bool writable = ::access(folder.c_str(), W_OK | X_OK) == 0;
  require(writable, ErrorKind::io, "the folder {} cannot be written to: {}", folder.string(),
          reason_of(errno));
}

bool is_in_memory(const std::filesystem::path& folder) {
  struct statfs found {};
  if (::statfs(folder.c_str(), &found) != 0) return false;
  return found.f_type == TMPFS_MAGIC || found.f_type == RAMFS_MAGIC;
}

void require_drive(const std::filesystem::path& folder) {
  require_writable_folder(folder);
  require(
      !is_in_memory(folder), ErrorKind::usage,
      "{} lies in memory (tmpfs), so state kept there would save none; name a folder on a drive",
      folder.string());
}

}  // namespace terrace::io
