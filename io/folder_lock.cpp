#include "terrace/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>
#include <utility>

#include "terrace/core/clock.h"
#include "terrace/core/error.h"

namespace terrace::io {
namespace {

namespace fs = std::filesystem;

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// When a process started, in ticks since boot, with the boot's id: a pid that is used again is
/// another process. Empty when there is no such process.
std::string start_of(std::int64_t pid) {
  const std::string stat = first_line(fmt::format("/proc/{}/stat", pid));
  const std::size_t name_end = stat.rfind(')');  // The name may contain anything, blanks too.
  if (name_end == std::string::npos) return "";
  std::istringstream fields(stat.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return field + "@" + first_line("/proc/sys/kernel/random/boot_id");
}

/// The lock file's lines are "key value".
std::string encode(std::string_view owner, std::span<const fs::path> folders) {
  std::string text = fmt::format("owner {}\nhost {}\npid {}\nstart {}\nsince {}\n", owner,
                                 host_name(), ::getpid(), start_of(::getpid()), utc_now());
  for (const fs::path& folder : folders) text += fmt::format("folder {}\n", folder.string());
  return text;
}

LockRecord decode(const fs::path& path, std::string& start) {
  LockRecord record;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t blank = line.find(' ');
    if (blank == std::string::npos) continue;
    const std::string key = line.substr(0, blank);
    const std::string value = line.substr(blank + 1);
    if (key == "owner") record.owner = value;
    if (key == "host") record.host = value;
    if (key == "pid") std::from_chars(value.data(), value.data() + value.size(), record.pid);
    if (key == "start") start = value;
    if (key == "since") record.since = value;
    if (key == "folder") record.folders.emplace_back(value);
  }
  return record;
}

RunLiveness liveness_of(const fs::path& file, const LockRecord& record, const std::string& start) {
  const FileDescriptor lock(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (lock && !try_lock(lock.get(), false)) return RunLiveness::live;
  // Without a readable record: its run died while making it.
  if (record.host.empty()) return RunLiveness::dead;
  if (record.host != host_name()) return RunLiveness::unknown;
  // Within one process the lock alone decides: a run that is over has let it go.
  if (record.pid == ::getpid()) return RunLiveness::dead;
  return !start.empty() && start_of(record.pid) == start ? RunLiveness::live : RunLiveness::dead;
}

/// Whether the open file is still the one of that name.
bool is_named(int descriptor, const fs::path& file) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(descriptor, &opened) == 0 && ::stat(file.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

std::string_view name_of(RunLiveness liveness) {
  switch (liveness) {
    case RunLiveness::live:
      return "live";
    case RunLiveness::dead:
      return "dead";
    case RunLiveness::unknown:
      break;
  }
  return "unknown";
}

bool try_lock(int descriptor, bool wait) {
  int code = 0;
  do {
    code = ::flock(descriptor, LOCK_EX | (wait ? 0 : LOCK_NB)) == 0 ? 0 : errno;
  } while (code == EINTR);
  return code != EWOULDBLOCK;
}

LockRecord read_lock(const fs::path& file) {
  std::string start;
  LockRecord record = decode(file, start);
  record.liveness = liveness_of(file, record, start);
  return record;
}

FolderLock::FolderLock(fs::path file, std::string_view owner, std::span<const fs::path> folders)
    : file_(std::move(file)) {
  const LockRecord holder = read_lock(file_);
  require(holder.liveness != RunLiveness::live, ErrorKind::usage,
          "{} is in use by another run (process {} on {}, since {}): end that one first, or name "
          "another folder",
          file_.parent_path().string(), holder.pid, holder.host, holder.since);
  open_locked();
  const std::string text = encode(owner, folders);
  // In place: a rename would put the record into a file that is not the locked one.
  const bool written = ::ftruncate(descriptor_.get(), 0) == 0 &&
                       ::pwrite(descriptor_.get(), text.data(), text.size(), 0) ==
                           static_cast<ssize_t>(text.size()) &&
                       ::fsync(descriptor_.get()) == 0;
  require(written, ErrorKind::io, "cannot write {}: {}", file_.string(), errno_name(errno));
}

void FolderLock::open_locked() {
  // Whoever held the lock may remove the file between our opening and our locking it.
  do {
    descriptor_ = FileDescriptor(::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    require(static_cast<bool>(descriptor_), ErrorKind::io, "cannot create {}: {}", file_.string(),
            errno_name(errno));
    require(try_lock(descriptor_.get(), false), ErrorKind::usage, "{} is in use by another run",
            file_.parent_path().string());
  } while (!is_named(descriptor_.get(), file_));
}

void FolderLock::remove() noexcept {
  ::unlink(file_.c_str());
  descriptor_ = FileDescriptor();
}

}  // namespace terrace::io
