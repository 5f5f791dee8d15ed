#include "terrace/io/run_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/io/file.h"
#include "terrace/io/free_space.h"
#include "terrace/io/page_store.h"

namespace terrace::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "terrace-run-";
constexpr const char* kLockName = "lock";
constexpr int kNamesMax = 1000;

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

RunRecord read_record(const fs::path& path) {
  LockRecord lock = read_lock(path / kLockName);
  return {path,
          std::move(lock.owner),
          std::move(lock.host),
          lock.pid,
          std::move(lock.since),
          std::move(lock.folders),
          bytes_below(path),
          lock.liveness};
}

bool is_run_folder(const fs::path& path) {
  return path.filename().native().starts_with(kPrefix) && fs::is_directory(path);
}

void remove_all(std::span<const fs::path> folders) {
  for (const fs::path& path : removal_order(folders)) {
    const std::error_code code = remove_with_space(path);
    require(!code, ErrorKind::io, "cannot remove {}: {}", path.string(), errno_name(code.value()));
    // Or a power cut could undo it and keep what follows.
    if (path.filename() == PageStore::kManifestName) sync_folder(path.parent_path());
  }
}

}  // namespace

bool is_same_folder(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return a == b || fs::equivalent(a, b, ignored) || plain_path(a) == plain_path(b);
}

void require_distinct_folders(std::string_view option, std::span<const fs::path> folders) {
  for (auto folder = folders.begin(); folder != folders.end(); ++folder) {
    const auto first = std::find_if(folders.begin(), folder, [&](const fs::path& other) {
      return is_same_folder(other, *folder);
    });
    require(first == folder, ErrorKind::usage, "{} names {} twice{}: name each folder once", option,
            first->string(),
            *first == *folder ? "" : fmt::format(", the second time as {}", folder->string()));
  }
}

std::vector<RunRecord> list_run_folders(const fs::path& base) {
  require(fs::exists(base), ErrorKind::usage,
          "the folder {} does not exist; create it, or name another", base.string());
  require(fs::is_directory(base), ErrorKind::usage,
          "{} is no folder: name one that was given to train as --swap", base.string());
  const FileDescriptor guarded = guard(base);
  std::vector<RunRecord> records;
  for (const auto& entry : fs::directory_iterator(base)) {
    if (is_run_folder(entry.path())) records.push_back(read_record(fs::absolute(entry.path())));
  }
  std::ranges::sort(records, {}, [](const RunRecord& record) { return record.path; });
  return records;
}

std::uint64_t bytes_of(const RunRecord& record) {
  std::uint64_t bytes = bytes_below(record.path);
  for (const fs::path& sibling : record.folders) {
    if (!is_same_folder(sibling, record.path) && is_run_folder(sibling))
      bytes += bytes_below(sibling);
  }
  return bytes;
}

std::vector<fs::path> removal_order(std::span<const fs::path> folders) {
  std::vector<fs::path> order;
  // The first folder's record names the others.
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
    if (!is_run_folder(*folder)) continue;
    std::error_code code;
    for (const auto& entry : fs::directory_iterator(*folder, code)) {
      if (entry.path().filename() != kLockName) order.push_back(entry.path());
    }
    require(!code, ErrorKind::io, "cannot list the folder {}: {}", folder->string(),
            errno_name(code.value()));
    order.push_back(*folder / kLockName);
    order.push_back(*folder);
  }
  std::ranges::stable_partition(
      order, [](const fs::path& path) { return path.filename() == PageStore::kManifestName; });
  return order;
}

std::uint64_t remove_run_folder(const RunRecord& record, bool force) {
  const FileDescriptor guarded = guard(record.path.parent_path());
  const RunRecord now = read_record(record.path);
  require(now.liveness == RunLiveness::dead || (now.liveness == RunLiveness::unknown && force),
          ErrorKind::usage, "{} belongs to a run that is {} (process {} on {}, since {})",
          now.path.string(), name_of(now.liveness), now.pid, now.host, now.since);
  const std::uint64_t bytes = bytes_of(now);
  std::vector<fs::path> folders = now.folders;
  const bool names_itself = std::ranges::any_of(
      folders, [&](const fs::path& folder) { return is_same_folder(folder, now.path); });
  if (!names_itself) folders.insert(folders.begin(), now.path);
  remove_all(folders);
  return bytes;
}

void RunFolder::lock(const RunFolderOptions& options) {
  for (const fs::path& path : paths_) locks_.emplace_back(path / kLockName, options.owner, paths_);
}

RunFolder RunFolder::create(std::span<const fs::path> bases, const RunFolderOptions& options) {
  require(!bases.empty(), ErrorKind::internal, "a run folder needs a base");
  for (const fs::path& base : bases) {
    options.allow_memory ? require_writable_folder(base) : require_drive(base);
  }
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
      const bool made = ::mkdir(path.c_str(), 0777) == 0;
      require(made, ErrorKind::io, "cannot create the folder {}: {}", path.string(),
              errno_name(errno));
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
  for (const fs::path& base : bases) {
    for (RunRecord& record : list_run_folders(base)) {
      const bool matches = record.owner == owner && record.liveness != RunLiveness::live &&
                           !record.folders.empty() &&
                           is_same_folder(record.folders[0], record.path);
      if (matches && (!newest || record.since > newest->since)) newest = std::move(record);
    }
  }
  return newest;
}

void RunFolder::remove() {
  remove_all(paths_);
  paths_.clear();
  locks_.clear();
}

}  // namespace terrace::io
