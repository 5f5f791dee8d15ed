#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/checkpoint/model_folder.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/core/error.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

constexpr std::size_t kShownEntries = 5;

void require_folder(const std::filesystem::path& path, std::string_view wanted) {
  const io::Entry found = io::look_at(path, ErrorKind::data);
  require(found != io::Entry::nothing, ErrorKind::data, "{} does not exist; {} was expected",
          path.string(), wanted);
  require(found == io::Entry::folder, ErrorKind::data,
          "{} is a file, but {} was expected; give the folder that it lies in", path.string(),
          wanted);
}

/// What a folder holds, for a message: a few names.
std::string contents_of(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    names.push_back(entry.path().filename().string());
  }
  if (code) return fmt::format("what cannot be listed ({})", errno_name(code.value()));
  if (names.empty()) return "nothing";
  std::sort(names.begin(), names.end());
  const std::size_t more = names.size() - std::min(names.size(), kShownEntries);
  names.resize(std::min(names.size(), kShownEntries));
  return fmt::format("{}{}", fmt::join(names, ", "),
                     more == 0 ? "" : fmt::format(" and {} more", more));
}

/// Why the broken checkpoints of a folder do not do; empty without any.
std::string faults_of(const CheckpointList& list) {
  if (list.broken.empty()) return {};
  return fmt::format("; {} of its checkpoints cannot be used, the newest because {}",
                     list.broken.size(), list.broken.front().fault);
}

/// The snapshot of a model in the Hugging Face cache: the one that "main" names, else the only one.
std::optional<std::filesystem::path> snapshot_of(const std::filesystem::path& path) {
  const std::filesystem::path snapshots = path / "snapshots";
  if (!io::is_there(snapshots, ErrorKind::data)) return std::nullopt;
  if (io::is_there(path / "refs" / "main", ErrorKind::data)) {
    std::string revision = io::read_file(path / "refs" / "main", 4096);
    revision.erase(revision.find_last_not_of(" \n\r\t") + 1);
    if (io::is_there(snapshots / revision, ErrorKind::data)) return snapshots / revision;
  }
  std::vector<std::filesystem::path> found;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(snapshots, code)) {
    found.push_back(entry.path());
  }
  require(found.size() <= 1, ErrorKind::data,
          "{} holds {} snapshots and refs/main names none of them; give the snapshot's folder",
          path.string(), found.size());
  if (found.empty()) return std::nullopt;
  return found.front();
}

/// A remark where an output folder's final model is older than its newest checkpoint: the run went
/// on since, and is not over. Empty otherwise.
std::string newer_checkpoint(const std::filesystem::path& path) {
  const auto newest = newest_checkpoint(path);
  if (!newest) return {};
  std::error_code code;
  const auto saved = std::filesystem::last_write_time(newest->folder / kMarkerName, code);
  const auto finished = std::filesystem::last_write_time(path / "config.json", code);
  if (code || saved <= finished) return {};
  return fmt::format(
      "the final model in {} is older than {}, which a run that is not over has saved since; the "
      "former is used, name the latter to use that",
      path.string(), newest->folder.string());
}

}  // namespace

ResolvedModel resolve_model_folder(const std::filesystem::path& path) {
  require_folder(path, "a model folder, a checkpoint or an output folder");
  if (io::is_there(path / kMarkerName, ErrorKind::data)) return {path, FolderKind::checkpoint, ""};
  if (io::is_there(path / "config.json", ErrorKind::data))
    return {path, FolderKind::model, newer_checkpoint(path)};
  if (const auto snapshot = snapshot_of(path)) {
    return {*snapshot, FolderKind::model,
            fmt::format("{} is a folder of the Hugging Face cache; its snapshot is {}",
                        path.string(), snapshot->string())};
  }
  const CheckpointList list = list_checkpoints(path);
  require(!list.complete.empty(), ErrorKind::data,
          "{} is neither a model folder nor a checkpoint nor an output folder: there is no "
          "config.json and no complete checkpoint-<step> in it, but {}{}",
          path.string(), contents_of(path), faults_of(list));
  const CheckpointEntry& newest = list.complete.front();
  return {newest.folder, FolderKind::checkpoint,
          fmt::format("{} has no final model, and {} is its newest complete checkpoint",
                      path.string(), newest.folder.string())};
}

std::filesystem::path resolve_checkpoint(const std::filesystem::path& path) {
  require_folder(path, "a checkpoint or an output folder");
  if (io::is_there(path / kMarkerName, ErrorKind::data)) return path;
  const CheckpointList list = list_checkpoints(path);
  require(
      !list.complete.empty(), ErrorKind::data,
      "there is nothing to resume from in {}: it has no {}, so it is not a complete checkpoint, "
      "and there is no complete checkpoint-<step> in it, but {}{}",
      path.string(), kMarkerName, contents_of(path), faults_of(list));
  return list.complete.front().folder;
}

}  // namespace terrace::checkpoint
