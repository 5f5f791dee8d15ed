#include "terrace/io/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>
#include <utility>

#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/io/file.h"
#include "terrace/io/free_space.h"

namespace terrace::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "terrace-run-";
constexpr const char* kLockName = "lock";
constexpr int kNamesMax = 1000;

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

/// Takes the lock of an open file or folder. False when another process holds it.
bool try_lock(int descriptor, bool wait) {
  int code = 0;
  do {
    code = ::flock(descriptor, LOCK_EX | (wait ? 0 : LOCK_NB)) == 0 ? 0 : errno;
  } while (code == EINTR);
  // Without locks (some network file systems) what the lock file says has to do.
  return code != EWOULDBLOCK;
}

/// Keeps others from making, adopting or removing run folders below `base` meanwhile.
FileDescriptor guard(const fs::path& base) {
  FileDescriptor descriptor(::open(base.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  require(static_cast<bool>(descriptor), ErrorKind::io, "cannot open the folder {}: {}",
          base.string(), errno_name(errno));
  (void)try_lock(descriptor.get(), true);
  return descriptor;
}

std::uint64_t bytes_below(const fs::path& folder) {
  std::uint64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : fs::recursive_directory_iterator(folder, ignored)) {
    struct stat status {};
    if (::lstat(entry.path().c_str(), &status) == 0) {
      bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

/// The lock file's lines are "key value".
std::string encode(std::string_view owner, std::span<const fs::path> folders) {
  std::string text = fmt::format("owner {}\nhost {}\npid {}\nstart {}\nsince {}\n", owner,
                                 host_name(), ::getpid(), start_of(::getpid()), utc_now());
  for (const fs::path& folder : folders) text += fmt::format("folder {}\n", folder.string());
  return text;
}

RunRecord decode(const fs::path& path, std::string& start) {
  RunRecord record;
  record.path = path;
  std::ifstream file(path / kLockName);
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

RunLiveness liveness_of(const RunRecord& record, const std::string& start) {
  const FileDescriptor lock(::open((record.path / kLockName).c_str(), O_RDONLY | O_CLOEXEC));
  if (lock && !try_lock(lock.get(), false)) return RunLiveness::live;
  // A folder without a readable record: its run died while making it, under the guard.
  if (record.host.empty()) return RunLiveness::dead;
  if (record.host != host_name()) return RunLiveness::unknown;
  // Within one process the lock alone decides: a run that is over has let it go.
  if (record.pid == ::getpid()) return RunLiveness::dead;
  return !start.empty() && start_of(record.pid) == start ? RunLiveness::live : RunLiveness::dead;
}

RunRecord read_record(const fs::path& path) {
  std::string start;
  RunRecord record = decode(path, start);
  record.bytes = bytes_below(path);
  record.liveness = liveness_of(record, start);
  return record;
}

bool is_run_folder(const fs::path& path) {
  return path.filename().native().starts_with(kPrefix) && fs::is_directory(path);
}

void remove_tree(const fs::path& path) {
  std::error_code code;
  fs::remove_all(path, code);
  require(!code, ErrorKind::io, "cannot remove {}: {}", path.string(), code.message());
}

void check_base(const fs::path& base, const RunFolderOptions& options) {
  require_writable_folder(base);
  require(
      options.allow_memory || !is_in_memory(base), ErrorKind::usage,
      "{} lies in memory (tmpfs), so state kept there would save none; name a folder on a drive",
      base.string());
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

std::vector<RunRecord> list_run_folders(const fs::path& base) {
  require(fs::is_directory(base), ErrorKind::usage,
          "the folder {} does not exist; create it, or name another", base.string());
  const FileDescriptor guarded = guard(base);
  std::vector<RunRecord> records;
  for (const auto& entry : fs::directory_iterator(base)) {
    if (is_run_folder(entry.path())) records.push_back(read_record(fs::absolute(entry.path())));
  }
  std::ranges::sort(records, {}, [](const RunRecord& record) { return record.path; });
  return records;
}

std::uint64_t remove_run_folder(const RunRecord& record, bool force) {
  const FileDescriptor guarded = guard(record.path.parent_path());
  const RunRecord now = read_record(record.path);
  require(now.liveness == RunLiveness::dead || (now.liveness == RunLiveness::unknown && force),
          ErrorKind::usage, "{} belongs to a run that is {} (process {} on {}, since {})",
          now.path.string(), name_of(now.liveness), now.pid, now.host, now.since);
  std::uint64_t bytes = now.bytes;
  for (const fs::path& sibling : now.folders) {
    if (sibling == now.path || !is_run_folder(sibling)) continue;
    bytes += bytes_below(sibling);
    remove_tree(sibling);
  }
  if (is_run_folder(now.path)) remove_tree(now.path);
  return bytes;
}

void RunFolder::lock(const RunFolderOptions& options) {
  const std::string text = encode(options.owner, paths_);
  for (const fs::path& path : paths_) {
    const fs::path name = path / kLockName;
    FileDescriptor lock(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    require(static_cast<bool>(lock), ErrorKind::io, "cannot create {}: {}", name.string(),
            errno_name(errno));
    require(try_lock(lock.get(), false), ErrorKind::usage, "{} is in use by another run",
            path.string());
    // In place: a rename would put the record into a file that is not the locked one.
    const bool written =
        ::ftruncate(lock.get(), 0) == 0 &&
        ::pwrite(lock.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
        ::fsync(lock.get()) == 0;
    require(written, ErrorKind::io, "cannot write {}: {}", name.string(), errno_name(errno));
    locks_.push_back(std::move(lock));
  }
}

RunFolder RunFolder::create(std::span<const fs::path> bases, const RunFolderOptions& options) {
  require(!bases.empty(), ErrorKind::internal, "a run folder needs a base");
  for (const fs::path& base : bases) check_base(base, options);
  const FileDescriptor guarded = guard(bases[0]);
  for (int attempt = 0; attempt < kNamesMax; ++attempt) {
    const std::string name = fmt::format("{}{}-{}", kPrefix, ::getpid(), attempt);
    RunFolder folder;
    for (const fs::path& base : bases) folder.paths_.push_back(fs::absolute(base) / name);
    // One base given twice would put two files of the store on one drive, under one name.
    if (std::ranges::any_of(folder.paths_, [](const fs::path& path) { return fs::exists(path); })) {
      continue;
    }
    for (const fs::path& path : folder.paths_) {
      require(::mkdir(path.c_str(), 0777) == 0, ErrorKind::io, "cannot create the folder {}: {}",
              path.string(), errno_name(errno));
    }
    folder.lock(options);
    return folder;
  }
  fail(ErrorKind::io,
       "{} holds {} run folders of process {} already; remove them with 'terrace "
       "swap clean'",
       bases[0].string(), kNamesMax, ::getpid());
}

RunFolder RunFolder::adopt(const RunRecord& record, const RunFolderOptions& options) {
  const FileDescriptor guarded = guard(record.path.parent_path());
  const RunRecord now = read_record(record.path);
  require(now.liveness != RunLiveness::live, ErrorKind::usage,
          "{} is in use by process {} on {} since {}", now.path.string(), now.pid, now.host,
          now.since);
  RunFolder folder;
  folder.paths_ = now.folders;
  for (const fs::path& path : folder.paths_) {
    require(is_run_folder(path), ErrorKind::usage,
            "the folder {} of the run in {} is gone; mount its drive, or start from a checkpoint",
            path.string(), now.path.string());
  }
  folder.lock(options);
  return folder;
}

std::optional<RunRecord> RunFolder::find(std::span<const fs::path> bases, std::string_view owner) {
  std::optional<RunRecord> newest;
  for (RunRecord& record : list_run_folders(bases[0])) {
    const bool matches = record.owner == owner && record.liveness != RunLiveness::live &&
                         !record.folders.empty() && record.folders[0] == record.path;
    if (matches && (!newest || record.since > newest->since)) newest = std::move(record);
  }
  return newest;
}

void RunFolder::remove() {
  for (const fs::path& path : paths_) remove_tree(path);
  paths_.clear();
  locks_.clear();
}

}  // namespace terrace::io
