#include "output_folder.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/checkpoint/model_folder.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/core/error.h"
#include "terrace/core/json.h"
#include "terrace/core/units.h"
#include "terrace/io/file.h"
#include "terrace/io/free_space.h"

namespace terrace::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockName = "run.lock";
constexpr const char* kRecordName = "run.json";
constexpr const char* kMetricsName = "metrics.jsonl";
/// Begins what a store says of its owner; the rest is the output folder.
constexpr std::string_view kOwnerMark = "rank 0 of ";

/// `run.json`; null where there is none, or it is not whole.
Json read_record(const fs::path& folder) {
  if (!io::is_there(folder / kRecordName)) return nullptr;
  const std::optional<Json> record = json_from(io::read_file(folder / kRecordName));
  return record && record->is_object() ? *record : Json(nullptr);
}

/// The id of a run that never began, and the lock that its kill left, are nothing that anybody
/// wants.
bool holds_nothing(const fs::path& folder) {
  return std::ranges::all_of(fs::directory_iterator(folder), [&](const auto& entry) {
    const fs::path name = entry.path().filename();
    if (name == kRecordName) return !read_record(folder).contains("config");
    return name.native().starts_with(kLockName) || io::is_temporary_name(name.native());
  });
}

/// What is kept of the run's id, wherever it is still to be found.
io::RunId kept_id(const fs::path& folder) {
  if (const io::RunId run = OutputFolder::id_in(folder)) return run;
  if (const io::RunId run = io::read_lock(folder / kLockName).id.run) return run;
  try {
    if (const auto newest = checkpoint::newest_checkpoint(folder)) {
      return checkpoint::TrainingCheckpoint(newest->folder).trainer().run;
    }
  } catch (const Error&) {  // Whoever goes on from it will say so.
  }
  return {};
}

bool is_below(const fs::path& path, const fs::path& folder) {
  const fs::path relative = io::plain_path(path).lexically_relative(io::plain_path(folder));
  return !relative.empty() && *relative.begin() != "..";
}

/// Checks what is there on the way to a folder that is not.
void require_place(const fs::path& folder) {
  const fs::path there = io::existing_part(folder);
  require(io::is_folder(there), ErrorKind::usage,
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

bool OutputFolder::is_name_of_run(const std::string& name) {
  return name == kLockName || name == kRecordName || name == kMetricsName ||
         checkpoint::is_name_of_save(name) || checkpoint::is_model_file(name);
}

bool OutputFolder::is_output(const fs::path& folder) {
  return io::is_there(folder / kLockName) ||
         (io::is_there(folder / kRecordName) && io::is_there(folder / kMetricsName));
}

OutputFolder::OutputFolder(const config::OutputSettings& settings, Log& log)
    : path_(settings.folder),
      resumes_(!settings.resume.empty()),
      overwrites_(settings.overwrite),
      unlocked_(settings.no_lock),
      log_(log) {
  if (!io::is_there(path_)) {
    run_ = io::RunId::draw();
    require_place(path_);
    return;
  }
  require(io::is_folder(path_), ErrorKind::usage,
          "--output names {}, which is a file: name a folder, which is made if it is not there",
          path_.string());
  require(resumes_ || overwrites_ || holds_nothing(path_), ErrorKind::usage,
          "the output folder {} is not empty: give --resume auto to go on with what is there, or "
          "another --output (--overwrite_output_dir removes what a run has saved there)",
          path_.string());
  io::require_writable_folder(path_);
  run_ = kept_id(path_);
  if (!run_) run_ = io::RunId::draw();
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

StoreOwner OutputFolder::store_owner(const io::RunId& run) const {
  return {run, std::string(kOwnerMark) + io::plain_path(path_).string(), unlocked_};
}

fs::path OutputFolder::output_of(const std::string& owner_words) {
  return owner_words.starts_with(kOwnerMark) ? owner_words.substr(kOwnerMark.size()) : "";
}

io::RunId OutputFolder::id_in(const fs::path& folder) {
  const Json record = read_record(folder);
  const auto found = record.find("run_id");
  const bool is_there = found != record.end() && found->is_string();
  return is_there ? io::RunId::parse(found->get<std::string>()) : io::RunId();
}

void OutputFolder::lock() { lock_.emplace(path_ / kLockName, lock_contents(), unlocked_); }

io::LockContents OutputFolder::lock_contents() const {
  return {fmt::format("output {}", io::plain_path(path_).string()), {run_}, {}};
}

void OutputFolder::keep_id(bool alone) {
  if (!alone && id_in(path_) == run_) return;
  Json record = alone ? Json(nullptr) : read_record(path_);
  if (record.is_null()) record = {{"schema", "terrace-run-1"}};
  record["run_id"] = run_.text();
  io::write_file(path_ / kRecordName, json_text(record));
}

void OutputFolder::make(const io::RunId& run) {
  const bool is_new = run_ != run;
  run_ = run;
  if (lock_) {
    if (is_new) lock_->write(lock_contents());
    keep_id(false);
    return;
  }
  io::make_folder(path_);
  lock();
  require(resumes_ || overwrites_ || holds_nothing(path_), ErrorKind::usage,
          "another run has begun and ended in the output folder {} meanwhile: name another one",
          path_.string());
  keep_id(false);
}

std::vector<fs::path> OutputFolder::to_clear() const {
  std::vector<fs::path> paths;
  if (!overwrites_ || !io::is_there(path_)) return paths;
  const checkpoint::CheckpointList list = checkpoint::list_checkpoints(path_);
  for (const auto* group : {&list.complete, &list.broken}) {
    for (const checkpoint::CheckpointEntry& entry : *group) paths.push_back(entry.folder);
  }
  paths.insert(paths.end(), list.unfinished.begin(), list.unfinished.end());
  for (const fs::path& file : checkpoint::model_files(path_)) paths.push_back(file);
  if (io::is_there(path_ / kMetricsName)) paths.push_back(path_ / kMetricsName);
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
  const io::Entry found = io::look_at(file);
  require(found != io::Entry::folder, ErrorKind::usage,
          "--trace names {}, which is a folder: name a file", file.string());
  if (found != io::Entry::nothing) {
    const bool writable = ::access(file.c_str(), W_OK) == 0;
    require(writable, ErrorKind::io, "cannot write the trace to {}: {}", file.string(),
            io::reason_of(errno));
    return;
  }
  const fs::path folder = io::plain_path(file).parent_path();
  if (!io::is_there(folder) && is_below(path_, folder)) return;
  io::require_writable_folder(folder);
}

std::uint64_t OutputFolder::bytes_to_clear() const {
  std::uint64_t bytes = 0;
  for (const fs::path& path : to_clear()) bytes += bytes_of(path);
  return bytes;
}

OutputFolder::LastRun OutputFolder::last_run() const {
  LastRun run;
  const Json record = read_record(path_);
  const auto says = [&](const char* key) {
    const auto found = record.find(key);
    return found != record.end() && *found == true;
  };
  run.commits_every_step = says("commits_every_step");
  run.finished = says("finished");
  const auto config = record.find("config");
  if (config == record.end() || !config->is_object()) return run;
  const auto swap = config->find("swap");
  if (swap == config->end() || !swap->is_array()) return run;
  for (const auto& folder : *swap) {
    if (folder.is_string()) run.swap.emplace_back(folder.get<std::string>());
  }
  return run;
}

void OutputFolder::clear() {
  if (overwrites_) keep_id(true);
  std::vector<std::string> names;
  for (const fs::path& path : to_clear()) {
    if (fs::is_directory(path) && !fs::is_symlink(path)) {
      checkpoint::remove_checkpoint(path);
    } else {
      std::error_code failed;
      fs::remove(path, failed);
      require(!failed, ErrorKind::io, "cannot remove {}: {}", path.string(),
              io::reason_of(failed.value()));
    }
    names.push_back(path.filename().string());
  }
  if (!names.empty()) {
    log_.info("--overwrite_output_dir: removed {} from {}", fmt::join(names, ", "), path_.string());
  }
}

}  // namespace terrace::train
