#include "terrace/io/entry.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "advice.h"
#include "terrace/io/file.h"

namespace terrace::io {
namespace {

namespace fs = std::filesystem;

/// The first folder on the way to `path` that this process may not enter; empty: none is known.
fs::path closed_folder(const fs::path& path) {
  fs::path folder;
  for (const fs::path& part : path.parent_path()) {
    folder /= part;
    if (::faccessat(AT_FDCWD, folder.c_str(), X_OK, AT_EACCESS) != 0 && errno == EACCES) {
      return folder;
    }
  }
  return {};
}

}  // namespace

Entry look_at(const fs::path& path, ErrorKind refused) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return Entry::folder;
    return S_ISREG(status.st_mode) ? Entry::file : Entry::other;
  }
  const int code = errno;
  // A name that is too long is nobody's.
  if (code == ENOENT || code == ENOTDIR || code == ENAMETOOLONG) return Entry::nothing;
  const fs::path closed = code == EACCES ? closed_folder(path) : fs::path();
  fail(refused, "cannot look at {}{}: {}", path.string(),
       closed.empty() ? "" : fmt::format(", because the folder {} is closed", closed.string()),
       reason_of(code));
}

bool is_there(const fs::path& path, ErrorKind refused) {
  return look_at(path, refused) != Entry::nothing;
}
bool is_folder(const fs::path& path, ErrorKind refused) {
  return look_at(path, refused) == Entry::folder;
}
bool is_file(const fs::path& path, ErrorKind refused) {
  return look_at(path, refused) == Entry::file;
}

fs::path existing_part(const fs::path& path, ErrorKind refused) {
  fs::path there = plain_path(path);
  while (there.has_relative_path() && !is_there(there, refused)) there = there.parent_path();
  return there;
}

void make_folder(const fs::path& folder, ErrorKind refused) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  require(!failed, refused, "cannot make the folder {}: {}", folder.string(),
          reason_of(failed.value()));
}

std::string reason_of(int code) { return errno_name(code) + advice(code); }

ErrorKind kind_of_open_error(int code, ErrorKind otherwise) {
  return code == EMFILE || code == ENFILE ? ErrorKind::io : otherwise;
}

std::size_t open_files_share() {
  // Half for all else; in the other half go the readers of a checkpoint's weights and state, or of
  // the data and of what is held out.
  constexpr rlim_t kPart = 8;
  constexpr rlim_t kMost = 1 << 16;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
  return static_cast<std::size_t>(std::clamp<rlim_t>(limit.rlim_cur / kPart, 1, kMost));
}

}  // namespace terrace::io
