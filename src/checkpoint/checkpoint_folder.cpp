#include "terrace/checkpoint/checkpoint_folder.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "marker.h"
#include "staging.h"
#include "terrace/checkpoint/model_folder.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/core/error.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

constexpr std::string_view kPrefix = "checkpoint-";

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  // "checkpoint-0003" is nobody's but its user's.
  if (code != std::errc() || step < 0 || digits != std::to_string(step)) return std::nullopt;
  return step;
}

/// What a save that was cut short has left under a temporary name: the name that it was to have.
std::optional<std::string> place_of_unfinished(std::string_view name) {
  std::optional<std::string> place = parse_staged_name(name);
  if (place && !step_of(*place) && *place != kModelStaging) place.reset();
  return place;
}

/// Why a folder is not the complete checkpoint of this step; empty when it is.
std::string fault_of(const std::filesystem::path& folder, std::int64_t step) {
  try {
    const Marker marker = read_marker(folder);
    require(marker.step == step, ErrorKind::data,
            "{} holds step {} and not the one of its name: give a copy another name",
            folder.string(), marker.step);
    require_sizes(folder, marker);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

template <class Visit>
void for_each_folder(const std::filesystem::path& output, Visit&& visit) {
  if (!io::is_there(output)) return;
  std::error_code code;
  std::filesystem::directory_iterator entries(output, code);
  require(!code, ErrorKind::io, "cannot list the folder {}: {}", output.string(),
          io::reason_of(code.value()));
  // Collected first, because a visit may rename or remove.
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : entries) {
    if (entry.is_directory(code)) folders.push_back(entry.path());
  }
  for (const std::filesystem::path& folder : folders) visit(folder, folder.filename().string());
}

}  // namespace

CheckpointList list_checkpoints(const std::filesystem::path& output) {
  CheckpointList list;
  for_each_folder(output, [&](const std::filesystem::path& folder, const std::string& name) {
    if (const auto step = step_of(name)) {
      CheckpointEntry entry{folder, *step, fault_of(folder, *step)};
      (entry.fault.empty() ? list.complete : list.broken).push_back(std::move(entry));
    } else if (place_of_unfinished(name)) {
      list.unfinished.push_back(folder);
    }
  });
  for (auto* entries : {&list.complete, &list.broken}) {
    std::sort(entries->begin(), entries->end(),
              [](const auto& left, const auto& right) { return left.step > right.step; });
  }
  return list;
}

std::optional<CheckpointEntry> newest_checkpoint(const std::filesystem::path& output) {
  CheckpointList list = list_checkpoints(output);
  if (list.complete.empty()) return std::nullopt;
  return std::move(list.complete.front());
}

void remove_checkpoint(const std::filesystem::path& folder) {
  StagingFolder grave(folder.parent_path(), folder.filename().string());
  io::rename_durably(folder, grave.path());
  std::error_code ignored;
  std::filesystem::remove(grave.path() / kMarkerName, ignored);  // First: not to be restored.
}

std::vector<std::filesystem::path> rotate_checkpoints(const std::filesystem::path& output,
                                                      std::int64_t save_total_limit) {
  std::vector<std::filesystem::path> removed;
  if (save_total_limit <= 0) return removed;
  const CheckpointList list = list_checkpoints(output);
  for (std::size_t i = static_cast<std::size_t>(save_total_limit); i < list.complete.size(); ++i) {
    if (std::filesystem::is_symlink(list.complete[i].folder)) continue;  // Not of our making.
    remove_checkpoint(list.complete[i].folder);
    removed.push_back(list.complete[i].folder);
  }
  return removed;
}

std::size_t remove_unfinished(const std::filesystem::path& output) {
  std::size_t removed = 0;
  for_each_folder(output, [&](const std::filesystem::path& folder, const std::string& name) {
    const auto place = place_of_unfinished(name);
    if (!place) return;
    const auto step = step_of(*place);
    if (step && !io::is_there(output / *place) && fault_of(folder, *step).empty()) {
      io::rename_durably(folder, output / *place);
      return;
    }
    std::error_code code;
    std::filesystem::remove_all(folder, code);
    require(!code, ErrorKind::io, "cannot remove {}: {}", folder.string(),
            io::reason_of(code.value()));
    ++removed;
  });
  return removed;
}

bool is_name_of_save(std::string_view name) {
  return step_of(name).has_value() || place_of_unfinished(name).has_value();
}

}  // namespace terrace::checkpoint
