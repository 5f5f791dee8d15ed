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

std::string remedy(int code, const std::filesystem::path& path) {
  switch (code) {
    case ENOSPC:
      return fmt::format("the file system at {} is full: free some space there, or write elsewhere",
                         mount_of(path).string());
    case EDQUOT:
      return fmt::format(
          "this user's quota at {} is used up: free some space there ('quota' shows it), or write "
          "elsewhere",
          mount_of(path).string());
    case EFBIG:
      return about_file_size(path);
    case EROFS:
      return fmt::format(
          "the file system at {} is read-only: mount it for writing (after an error of the drive "
          "it "
          "is made so: look at dmesg)",
          mount_of(path).string());
    case EIO:
    case ENODEV:
      return "the device reports a fault: look at dmesg and the drive's SMART data";
    case EMFILE:
      return "raise the limit of open files with 'ulimit -n'";
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
