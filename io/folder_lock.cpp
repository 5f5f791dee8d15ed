#include "terrace/io/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>
#include <utility>

#include "advice.h"
#include "file_lock.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/io/entry.h"
#include "terrace/io/file.h"

namespace terrace::io {
namespace {

namespace fs = std::filesystem;

/// Where the next record is written before it takes the name.
constexpr std::string_view kNextMark = ".new";

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

std::string boot() { return first_line("/proc/sys/kernel/random/boot_id"); }

/// Process numbers mean something within one such space alone: containers have their own.
std::string process_space() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/ns/pid", ignored).string();
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
  return field + "@" + boot();
}

/// A lock file's lines are "key value".
std::string encode(const LockContents& contents, bool locked) {
  std::string text = fmt::format("owner {}\nrun {}\nstore {:016x}\nhost {}\npid {}\nstart {}\n",
                                 contents.owner, contents.id.run.text(), contents.id.store,
                                 host_name(), ::getpid(), start_of(::getpid()));
  text += fmt::format("space {}\nlocked {}\nsince {}\n", process_space(), locked ? "yes" : "no",
                      utc_now());
  for (const fs::path& folder : contents.folders)
    text += fmt::format("folder {}\n", folder.string());
  return text;
}

/// A record with what only its liveness is found by.
struct Decoded {
  LockRecord record;
  std::string start;
  std::string space;
  bool locked = false;  ///< its writer held a lock that others see
};

Decoded decode(const fs::path& path) {
  Decoded found;
  LockRecord& record = found.record;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t blank = line.find(' ');
    if (blank == std::string::npos) continue;
    const std::string key = line.substr(0, blank);
    const std::string value = line.substr(blank + 1);
    const char* end = value.data() + value.size();
    if (key == "owner") record.owner = value;
    if (key == "run") record.id.run = RunId::parse(value);
    if (key == "store") std::from_chars(value.data(), end, record.id.store, 16);
    if (key == "host") record.host = value;
    if (key == "pid") std::from_chars(value.data(), end, record.pid);
    if (key == "start") found.start = value;
    if (key == "space") found.space = value;
    if (key == "locked") found.locked = value == "yes";
    if (key == "since") record.since = value;
    if (key == "folder") record.folders.emplace_back(value);
  }
  return found;
}

/// Of a run that holds no lock that can be seen: whether the process that it names is there.
RunLiveness liveness_of_process(const Decoded& found) {
  const LockRecord& record = found.record;
  const bool booted_once = !found.start.empty() && found.start.ends_with("@" + boot());
  const bool same_space =
      found.space.empty() ? record.host == host_name() : found.space == process_space();
  if (booted_once && same_space) {
    // Within one process the lock alone decides: a run that is over has let it go.
    const bool exists = record.pid != ::getpid() && start_of(record.pid) == found.start;
    return exists ? RunLiveness::live : RunLiveness::dead;
  }
  // What ran here before this host was started is gone.
  return !booted_once && record.host == host_name() ? RunLiveness::dead : RunLiveness::unknown;
}

RunLiveness liveness_of(const fs::path& file, const Decoded& found) {
  const FileDescriptor opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  const bool is_missing = !opened && errno == ENOENT;
  const LockAnswer answer = opened ? look_at_lock(opened.get()) : LockAnswer::unknown;
  if (answer == LockAnswer::held) return RunLiveness::live;
  // Without a record: its run died while making it, or somebody deleted it.
  if (found.record.host.empty()) {
    return answer == LockAnswer::free || is_missing ? RunLiveness::dead : RunLiveness::unknown;
  }
  if (answer == LockAnswer::free && found.locked) return RunLiveness::dead;
  return liveness_of_process(found);
}

/// Whether the open file is still the one of that name.
bool is_named(int descriptor, const fs::path& file) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(descriptor, &opened) == 0 && ::stat(file.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

/// A record is so short that a part of it alone means a full drive.
bool write_whole(int descriptor, const std::string& text) {
  const ssize_t written = ::pwrite(descriptor, text.data(), text.size(), 0);
  if (written >= 0) errno = ENOSPC;
  return written == static_cast<ssize_t>(text.size());
}

fs::path next_to(const fs::path& file) { return file.string() + std::string(kNextMark); }

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

std::string LockRecord::holder() const {
  if (host.empty()) return "a process that has not said yet who it is";
  return fmt::format("process {} on {}, since {}", pid, host, since);
}

LockRecord read_lock(const fs::path& file) {
  Decoded found = decode(file);
  found.record.liveness = liveness_of(file, found);
  return std::move(found.record);
}

std::optional<FolderLock> FolderLock::take(const fs::path& file, bool unlocked) {
  FolderLock lock;
  lock.file_ = file;
  // Whoever held the lock may replace or remove the file between our opening and our locking it.
  do {
    lock.descriptor_ = FileDescriptor(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!lock.descriptor_ && errno == ENOENT) return std::nullopt;
    require(static_cast<bool>(lock.descriptor_), ErrorKind::io, "cannot open {} to lock it: {}",
            file.string(), errno_name(errno));
    const LockAnswer answer = take_lock(lock.descriptor_.get());
    if (answer == LockAnswer::held) return std::nullopt;
    lock.locked_ = answer == LockAnswer::free;
    require(lock.locked_ || unlocked, ErrorKind::usage,
            "{} cannot be locked, as locks do not work there, so a run on another host could not "
            "be seen: name another folder, or give --no_lock where you know that no other run uses "
            "this one",
            file.string());
  } while (!is_named(lock.descriptor_.get(), file));
  return lock;
}

FolderLock::FolderLock(const fs::path& file, const LockContents& contents, bool unlocked) {
  const LockRecord before = read_lock(file);
  // One that cannot be read says nothing: then taking it tells.
  const bool is_unsure = before.liveness == RunLiveness::unknown && !before.host.empty();
  require(!is_unsure || unlocked, ErrorKind::usage,
          "{} may be in use by another run ({}), which no lock that is seen from here can tell: "
          "name another folder, or delete {} once you know that run to be over",
          file.parent_path().string(), before.holder(), file.string());
  std::optional<FolderLock> lock;
  if (before.liveness != RunLiveness::live) lock = take(file, unlocked);
  require(lock.has_value(), ErrorKind::usage,
          "{} is in use by another run ({}): end that one first, or name another folder",
          file.parent_path().string(), read_lock(file).holder());
  *this = std::move(*lock);
  write(contents);
}

void FolderLock::write(const LockContents& contents) {
  const fs::path next = next_to(file_);
  FileDescriptor descriptor(::open(next.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  const bool is_locked =
      descriptor && (!locked_ || take_lock(descriptor.get()) == LockAnswer::free);
  const std::string text = encode(contents, locked_);
  const bool written = is_locked && write_whole(descriptor.get(), text) &&
                       ::fsync(descriptor.get()) == 0 && ::rename(next.c_str(), file_.c_str()) == 0;
  if (!written) {
    const int code = errno;
    ::unlink(next.c_str());
    fail(ErrorKind::io, "cannot write {}, which stays as it was: {}{}", file_.string(),
         errno_name(code), advice(code, file_));
  }
  descriptor_ = std::move(descriptor);
  sync_folder(file_.parent_path());
}

void FolderLock::remove() noexcept {
  ::unlink(next_to(file_).c_str());
  ::unlink(file_.c_str());
  descriptor_ = FileDescriptor();
}

}  // namespace terrace::io
