#include "advice.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>

#include "terrace/core/units.h"

namespace terrace::io {
namespace {

/// The folder at which the file system of `path` is mounted.
std::filesystem::path mount_of(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::path at = std::filesystem::weakly_canonical(path, ignored);
  struct stat status {};
  while (at.has_relative_path() && ::stat(at.c_str(), &status) != 0) at = at.parent_path();
  const dev_t device = status.st_dev;
  while (at.has_relative_path()) {
    const std::filesystem::path above = at.parent_path();
    if (::stat(above.c_str(), &status) != 0 || status.st_dev != device) break;
    at = above;
  }
  return at;
}

std::string about_file_size(const std::filesystem::path& path) {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return fmt::format("the file system at {} takes no larger file: write elsewhere",
                       mount_of(path).string());
  }
  return fmt::format(
      "files may have {} here: raise the limit with 'ulimit -f unlimited', in a batch job with the "
      "system's own option for it",
      format_bytes(limit.rlim_cur));
}

/// " at <mount>", or nothing where no place is known.
std::string at_mount_of(const std::filesystem::path& path) {
  return path.empty() ? "" : fmt::format(" at {}", mount_of(path).string());
}

std::string remedy(int code, const std::filesystem::path& path) {
  switch (code) {
    case ENOSPC:
      return fmt::format("the file system{} is full: free some space there, or write elsewhere",
                         at_mount_of(path));
    case EDQUOT:
      return fmt::format(
          "this user's quota{} is used up: free some space there ('quota' shows it), or write "
          "elsewhere",
          at_mount_of(path));
    case EFBIG:
      return path.empty() ? "" : about_file_size(path);
    case EROFS:
      return fmt::format(
          "the file system{} is read-only: name a place that can be written to, or mount it for "
          "writing (after an error of the drive it is made so: look at dmesg)",
          at_mount_of(path));
    case EACCES:
    case EPERM:
      return "change its rights or those of the folders above it, or run as a user who has them";
    case EIO:
    case ENODEV:
      return "the device reports a fault: look at dmesg and the drive's SMART data";
    case EMFILE:
      return "raise the limit of open files with 'ulimit -n'";
    case ENFILE:
      return "raise the system's limit of open files (sysctl fs.file-max)";
    default:
      return "";
  }
}

}  // namespace

std::string advice(int code, const std::filesystem::path& path) {
  const std::string text = remedy(code, path);
  return text.empty() ? text : "; " + text;
}

}  // namespace terrace::io
