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

std::uint64_t bytes_below(const fs::path& folder) {
  std::uint64_t bytes = 0;
  std::error_code ignored;
  // Its run may remove it meanwhile.
  fs::recursive_directory_iterator entry(folder, ignored);
  for (; entry != fs::recursive_directory_iterator(); entry.increment(ignored)) {
    struct stat status {};
    if (::lstat(entry->path().c_str(), &status) == 0) {
      bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

RunRecord read_record(const fs::path& path) {
  LockRecord lock = read_lock(path / kLockName);
  RunRecord record{path,
                   std::move(lock.owner),
                   lock.id,
                   std::move(lock.host),
                   lock.pid,
                   std::move(lock.since),
                   std::move(lock.folders),
                   true,
                   bytes_below(path),
                   lock.liveness};
  record.is_first = record.folders.empty() || is_same_folder(record.folders[0], path);
  if (auto head = PageStore::describe(path)) {
    if (head->id.run) record.id = head->id;
    record.is_first = head->place == 0;
    if (!head->folders.empty()) {
      record.folders = std::move(head->folders);
      record.folders[0] = path;  // Where the manifest lies, wherever that is mounted.
    }
  }
  return record;
}

/// A folder of one store that another one's record names.
std::string describe_stranger(const RunRecord& found) {
  return fmt::format("{} is of another run{}, which is {}", found.path.string(),
                     found.owner.empty() ? "" : " (" + found.owner + ")", name_of(found.liveness));
}

/// Whether nothing but locks is in a folder: its making or its removal was cut short.
bool is_hollow(const fs::path& folder) {
  std::error_code failed;
  fs::directory_iterator entries(folder, failed);
  return !failed && std::ranges::all_of(entries, [](const auto& entry) {
    return entry.path().stem() == kLockName;
  });
}

/// Whether nothing in a folder says whose it is: a kill came before that, or after all else went.
bool is_left_over(const fs::path& folder) {
  return is_hollow(folder) && !read_record(folder).id.run;
}

/// Whether a folder that a store's record names is that store's indeed.
bool is_part_of(const RunRecord& found, const RunRecord& store) {
  if (is_same_folder(found.path, store.path)) return true;
  if (found.id == store.id) return found.id.run || found.owner == store.owner;
  return is_hollow(found.path) && found.liveness == RunLiveness::dead;
}

/// Removes folders whose locks are held, in `removal_order`. A folder goes only when it is empty:
/// as soon as its lock is gone another run may take its place.
void remove_all(std::span<const fs::path> folders, std::span<FolderLock> locks) {
  for (const fs::path& path : removal_order(folders)) {
    const auto folder =
        std::ranges::find(folders, path.filename() == kLockName ? path.parent_path() : path);
    if (path.filename() == kLockName) {
      locks[static_cast<std::size_t>(folder - folders.begin())].remove();
    } else if (folder != folders.end()) {
      const int code = ::rmdir(path.c_str()) == 0 ? 0 : errno;
      require(code == 0 || code == ENOENT || code == ENOTEMPTY || code == EEXIST, ErrorKind::io,
              "cannot remove {}: {}", path.string(), errno_name(code));
    } else {
      const std::error_code code = remove_with_space(path);
      require(!code, ErrorKind::io, "cannot remove {}: {}", path.string(),
              errno_name(code.value()));
      // Or a power cut could undo it and keep what follows.
      if (path.filename() == PageStore::kManifestName) sync_folder(path.parent_path());
    }
  }
}

}  // namespace

std::string RunRecord::holder() const {
  if (host.empty()) return "a process that says nothing of itself";
  return fmt::format("process {} on {}, since {}", pid, host, since);
}

bool is_run_folder(const fs::path& path) {
  std::error_code ignored;
  return path.filename().native().starts_with(kPrefix) && fs::is_directory(path, ignored);
}

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
  const Entry found = look_at(base);
  require(found != Entry::nothing, ErrorKind::usage,
          "the folder {} does not exist; create it, or name another", base.string());
  require(found == Entry::folder, ErrorKind::usage,
          "{} is not a folder: name one that was given to train as --swap", base.string());
  std::vector<RunRecord> records;
  if (is_run_folder(base)) return {read_record(plain_path(base))};
  for (const auto& entry : fs::directory_iterator(base)) {
    if (is_run_folder(entry.path())) records.push_back(read_record(fs::absolute(entry.path())));
  }
  std::ranges::sort(records, {}, [](const RunRecord& record) { return record.path; });
  return records;
}

std::uint64_t bytes_of(const RunRecord& record) {
  std::uint64_t bytes = bytes_below(record.path);
  for (const fs::path& path : record.folders) {
    if (is_same_folder(path, record.path) || !is_run_folder(path)) continue;
    const RunRecord sibling = read_record(path);
    if (sibling.id == record.id) bytes += sibling.bytes;
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
      if (entry.path().stem() != kLockName) order.push_back(entry.path());
    }
    require(!code, ErrorKind::io, "cannot list the folder {}: {}", folder->string(),
            reason_of(code.value()));
    order.push_back(*folder / kLockName);
    order.push_back(*folder);
  }
  std::ranges::stable_partition(
      order, [](const fs::path& path) { return path.filename() == PageStore::kManifestName; });
  return order;
}

Removal remove_run_folder(const RunRecord& record, bool force) {
  Removal removal;
  const RunRecord now = read_record(record.path);
  std::vector<fs::path> named = now.folders;
  const bool names_itself = std::ranges::any_of(
      named, [&](const fs::path& folder) { return is_same_folder(folder, now.path); });
  if (!names_itself) named.insert(named.begin(), now.path);
  std::vector<fs::path> folders;
  std::vector<FolderLock> locks;
  for (const fs::path& path : named) {
    if (!is_run_folder(path)) continue;
    const RunRecord found = read_record(path);
    if (!is_part_of(found, now)) {
      removal.kept.push_back(describe_stranger(found));
      continue;
    }
    const bool may_go =
        found.liveness == RunLiveness::dead || (found.liveness == RunLiveness::unknown && force);
    std::optional<FolderLock> lock;
    if (may_go) lock = FolderLock::take(path / kLockName, true);
    if (may_go && !lock && !is_run_folder(path)) continue;  // Another one has removed it.
    require(lock.has_value(), ErrorKind::usage, "{} belongs to a run that is {} ({})",
            path.string(), name_of(may_go ? RunLiveness::live : found.liveness), found.holder());
    const RunRecord locked = read_record(path);
    if (locked.id != found.id) continue;  // Another one has made it anew.
    removal.bytes += locked.bytes;
    folders.push_back(path);
    locks.push_back(std::move(*lock));
  }
  remove_all(folders, locks);
  return removal;
}

void RunFolder::write_records(const std::string& owner) {
  // The first folder's is written last: it names the others.
  for (std::size_t i = locks_.size(); i-- > 0;) locks_[i].write({owner, id_, paths_});
}

bool RunFolder::make(std::span<const fs::path> bases, const std::string& name, bool unlocked) {
  for (const fs::path& base : bases) {
    const fs::path path = fs::absolute(base) / name;
    const bool made = ::mkdir(path.c_str(), 0777) == 0;
    require(made || errno == EEXIST, ErrorKind::io, "cannot create the folder {}: {}",
            path.string(), errno_name(errno));
    if (!made && !is_left_over(path)) return false;
    std::optional<FolderLock> lock;
    try {
      lock = FolderLock::take(path / kLockName, unlocked);
    } catch (...) {
      if (made) (void)remove_with_space(path);
      throw;
    }
    // Somebody takes it for a dead run's, and removes it; or has made it his.
    if (!lock || (!made && !is_left_over(path))) return false;
    paths_.push_back(path);
    locks_.push_back(std::move(*lock));
  }
  return true;
}

RunFolder RunFolder::create(std::span<const fs::path> bases, const RunFolderOptions& options) {
  require(!bases.empty(), ErrorKind::internal, "a run folder needs a base");
  for (const fs::path& base : bases) {
    options.allow_memory ? require_writable_folder(base) : require_drive(base);
  }
  RunFolder folder;
  folder.id_ = {options.run ? options.run : RunId::draw(), draw_bits()};
  for (int attempt = 0; attempt < kNamesMax; ++attempt) {
    const std::string name = fmt::format("{}{}{}", kPrefix, folder.id_.run.text(),
                                         attempt == 0 ? "" : fmt::format("-{}", attempt));
    try {
      if (folder.make(bases, name, options.unlocked)) {
        folder.write_records(options.owner);
        return folder;
      }
    } catch (...) {
      folder.remove();
      throw;
    }
    folder.remove();
  }
  fail(ErrorKind::io, "{} holds {} folders of this run already: 'terrace swap ls {}' names them",
       bases[0].string(), kNamesMax, bases[0].string());
}

RunFolder RunFolder::adopt(const RunRecord& record, const RunFolderOptions& options) {
  RunFolder folder;
  folder.id_ = record.id;
  const auto require_same = [&](const RunRecord& found) {
    require(found.id == record.id && record.id.run, ErrorKind::usage,
            "the store in {} cannot be used: {}", record.path.string(),
            found.id.run ? describe_stranger(found)
                         : found.path.string() + " has vanished, or is no longer part of it");
  };
  const RunRecord now = read_record(record.path);
  require_same(now);
  for (const fs::path& path : now.folders) {
    require(is_run_folder(path), ErrorKind::usage,
            "the folder {} of the store in {} is gone: is its drive mounted?", path.string(),
            now.path.string());
    const RunRecord found = read_record(path);
    require_same(found);
    require(found.liveness != RunLiveness::unknown || options.unlocked, ErrorKind::usage,
            "{} may be in use by another run ({}), which no lock that is seen from here can tell: "
            "delete {} once you know that run to be over",
            path.string(), found.holder(), (path / kLockName).string());
    std::optional<FolderLock> lock;
    if (found.liveness != RunLiveness::live) {
      lock = FolderLock::take(path / kLockName, options.unlocked);
    }
    require(lock || is_run_folder(path), ErrorKind::usage,
            "the folder {} of the store in {} has vanished", path.string(), now.path.string());
    require(lock.has_value(), ErrorKind::usage, "{} is in use by {}", path.string(),
            found.holder());
    folder.paths_.push_back(path);
    folder.locks_.push_back(std::move(*lock));
    require_same(read_record(path));
  }
  require(!folder.paths_.empty(), ErrorKind::usage,
          "the folder {} does not say where the other parts of its store lie", now.path.string());
  folder.write_records(options.owner);
  return folder;
}

std::vector<RunRecord> RunFolder::find(std::span<const fs::path> bases, const RunId& run) {
  std::vector<RunRecord> found;
  for (const fs::path& base : bases) {
    for (RunRecord& record : list_run_folders(base)) {
      if (run && record.id.run == run && record.is_first) found.push_back(std::move(record));
    }
  }
  std::ranges::stable_sort(found, std::ranges::greater(), &RunRecord::since);
  return found;
}

void RunFolder::remove() {
  remove_all(paths_, locks_);
  paths_.clear();
  locks_.clear();
}

}  // namespace terrace::io
