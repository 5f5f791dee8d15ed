#include "output_folder.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/checkpoint/model_folder.h"
#include "terrace/core/error.h"
#include "terrace/core/json.h"
#include "terrace/core/units.h"
#include "terrace/io/file.h"
#include "terrace/io/free_space.h"

namespace terrace::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockName = "run.lock";
constexpr const char* kRecordName = "run.json";

/// A lock that a kill left is nothing that anybody wants.
bool holds_nothing(const fs::path& folder) {
  return std::ranges::all_of(fs::directory_iterator(folder), [](const auto& entry) {
    return entry.path().filename() == kLockName;
  });
}

bool is_below(const fs::path& path, const fs::path& folder) {
  const fs::path relative = io::plain_path(path).lexically_relative(io::plain_path(folder));
  return !relative.empty() && *relative.begin() != "..";
}

/// Checks what is there on the way to a folder that is not.
void require_place(const fs::path& folder) {
  std::error_code ignored;
  fs::path there = io::plain_path(folder);
  while (there.has_relative_path() && !fs::exists(there, ignored)) there = there.parent_path();
  require(fs::is_directory(there, ignored), ErrorKind::usage,
          "--output names {}, but {} is a file: name another folder", folder.string(),
          there.string());
  io::require_writable_folder(there);
}

std::uint64_t bytes_of(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_symlink(path, ignored)) return 0;
  if (!fs::is_directory(path, ignored)) return fs::exists(path) ? fs::file_size(path) : 0;
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path, ignored)) {
    if (entry.is_regular_file(ignored)) bytes += entry.file_size(ignored);
  }
  return bytes;
}

}  // namespace

OutputFolder::OutputFolder(const OutputSettings& settings, Log& log)
    : path_(settings.folder),
      resumes_(!settings.resume.empty()),
      overwrites_(settings.overwrite),
      log_(log) {
  if (!fs::exists(path_)) {
    require_place(path_);
    return;
  }
  require(fs::is_directory(path_), ErrorKind::usage,
          "--output names {}, which is a file: name a folder, which is made if it is not there",
          path_.string());
  require(resumes_ || overwrites_ || holds_nothing(path_), ErrorKind::usage,
          "the output folder {} is not empty: give --resume auto to go on with what is there, "
          "--overwrite_output_dir to start anew, or another --output",
          path_.string());
  io::require_writable_folder(path_);
  if (settings.dry_run) return;
  lock();
  const std::size_t removed = checkpoint::remove_unfinished(path_) + io::remove_temporaries(path_);
  if (removed > 0) {
    log_.info("removed from {} what {} cut short had left", path_.string(),
              counted(removed, "save"));
  }
}

OutputFolder::~OutputFolder() {
  if (lock_) lock_->remove();
}

void OutputFolder::lock() {
  lock_.emplace(path_ / kLockName, fmt::format("output {}", io::plain_path(path_).string()));
}

void OutputFolder::make() {
  if (lock_) return;
  std::error_code failed;
  fs::create_directories(path_, failed);
  require(!failed, ErrorKind::usage, "cannot make the output folder {}: {}", path_.string(),
          errno_name(failed.value()));
  lock();
  require(resumes_ || overwrites_ || holds_nothing(path_), ErrorKind::usage,
          "another run has begun and ended in the output folder {} meanwhile: name another one",
          path_.string());
}

std::vector<fs::path> OutputFolder::to_clear() const {
  std::vector<fs::path> paths;
  if (!overwrites_ || !fs::exists(path_)) return paths;
  const checkpoint::CheckpointList list = checkpoint::list_checkpoints(path_);
  for (const auto* group : {&list.complete, &list.broken}) {
    for (const checkpoint::CheckpointEntry& entry : *group) paths.push_back(entry.folder);
  }
  paths.insert(paths.end(), list.unfinished.begin(), list.unfinished.end());
  for (const fs::path& file : checkpoint::model_files(path_)) paths.push_back(file);
  for (const char* name : {"metrics.jsonl", kRecordName}) {
    if (fs::exists(path_ / name)) paths.push_back(path_ / name);
  }
  return paths;
}

void OutputFolder::require_kept(const fs::path& source) const {
  if (source.empty()) return;
  const bool is_all = io::plain_path(source) == io::plain_path(path_);
  for (const fs::path& path : to_clear()) {
    require(!is_all && !is_below(source, path), ErrorKind::usage,
            "--overwrite_output_dir would remove {}, which this run is to begin with: give another "
            "--output, or --resume auto to go on in {}",
            path.string(), path_.string());
  }
}

void OutputFolder::require_place_of_trace(const fs::path& file) const {
  if (file.empty()) return;
  std::error_code ignored;
  require(!fs::is_directory(file, ignored), ErrorKind::usage,
          "--trace names {}, which is a folder: name a file", file.string());
  if (fs::exists(file, ignored)) {
    const bool writable = ::access(file.c_str(), W_OK) == 0;
    require(writable, ErrorKind::io, "cannot write the trace to {}: {}", file.string(),
            errno_name(errno));
    return;
  }
  const fs::path folder = io::plain_path(file).parent_path();
  if (!fs::exists(folder, ignored) && is_below(path_, folder)) return;
  io::require_writable_folder(folder);
}

std::uint64_t OutputFolder::bytes_to_clear() const {
  std::uint64_t bytes = 0;
  for (const fs::path& path : to_clear()) bytes += bytes_of(path);
  return bytes;
}

OutputFolder::LastRun OutputFolder::last_run() const {
  std::error_code ignored;
  LastRun run;
  if (!fs::exists(path_ / kRecordName, ignored)) return run;
  const std::optional<Json> record = json_from(io::read_file(path_ / kRecordName));
  if (!record || !record->is_object()) return run;
  const auto says = [&](const char* key) {
    const auto found = record->find(key);
    return found != record->end() && *found == true;
  };
  run.commits_every_step = says("commits_every_step");
  run.finished = says("finished");
  const auto config = record->find("config");
  if (config == record->end() || !config->is_object()) return run;
  const auto swap = config->find("swap");
  if (swap == config->end() || !swap->is_array()) return run;
  for (const auto& folder : *swap) {
    if (folder.is_string()) run.swap.emplace_back(folder.get<std::string>());
  }
  return run;
}

void OutputFolder::clear() {
  std::vector<std::string> names;
  for (const fs::path& path : to_clear()) {
    if (fs::is_directory(path) && !fs::is_symlink(path)) {
      checkpoint::remove_checkpoint(path);
    } else {
      std::error_code failed;
      fs::remove(path, failed);
      require(!failed, ErrorKind::io, "cannot remove {}: {}", path.string(),
              errno_name(failed.value()));
    }
    names.push_back(path.filename().string());
  }
  if (!names.empty()) {
    log_.info("--overwrite_output_dir: removed {} from {}", fmt::join(names, ", "), path_.string());
  }
}

}  // namespace terrace::engine
