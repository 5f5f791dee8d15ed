#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The checkpoints of one output folder.

namespace terrace::checkpoint {

struct CheckpointEntry {
  std::filesystem::path folder;
  std::int64_t step = 0;
  std::string fault;  ///< of a broken one: a sentence that names the file
};

struct CheckpointList {
  std::vector<CheckpointEntry> complete;  ///< newest (highest step) first
  std::vector<CheckpointEntry> broken;    ///< likewise; reported, never used and never deleted
  std::vector<std::filesystem::path> unfinished;  ///< temporary names that a save left
};

/// Looks at every checkpoint-STEP in `output`, its name written as a save writes it: a copy under
/// another name is its user's. Complete means that its marker is whole and of that step, and every
/// file has the size that the marker says. A folder that does not exist has none. Errors: io.
[[nodiscard]] CheckpointList list_checkpoints(const std::filesystem::path& output);

/// The newest complete one. Errors: as `list_checkpoints`.
[[nodiscard]] std::optional<CheckpointEntry> newest_checkpoint(const std::filesystem::path& output);

/// Deletes a checkpoint by way of a temporary name, so that a kill leaves no half of it under its
/// own. Errors: io.
void remove_checkpoint(const std::filesystem::path& folder);

/// Deletes complete checkpoints of Terrace but the newest `save_total_limit`; 0 or less keeps all.
/// The newest complete one always stays, and so does what is broken or of another program. Returns
/// what was deleted. A kill leaves a temporary name and never half a checkpoint. Errors: io.
std::vector<std::filesystem::path> rotate_checkpoints(const std::filesystem::path& output,
                                                      std::int64_t save_total_limit);

/// Deletes what interrupted saves left in `output`, whose lock is held: nobody else saves there. A
/// complete checkpoint among it whose place is free (a kill just before the last rename) is put
/// there instead. Returns how many were deleted. Errors: io.
std::size_t remove_unfinished(const std::filesystem::path& output);

/// Whether a save writes folders of that name into its output: checkpoints, and what is to become
/// one, or the final model, under its temporary name.
[[nodiscard]] bool is_name_of_save(std::string_view name);

/// What a user's "--model DIR" or "--resume DIR" turned out to be.
enum class FolderKind { model, checkpoint };
struct ResolvedModel {
  std::filesystem::path folder;
  FolderKind kind = FolderKind::model;
  /// Why this folder, when it is not the one that was named, or what else it may have been: a
  /// checkpoint that is newer than the final model. Else empty.
  std::string reason;
};

/// Finds the model that is meant by a model folder, a checkpoint or an output folder (its final
/// model, else its newest complete checkpoint); a folder of the Hugging Face cache
/// ("models--ORG--NAME") is followed to its snapshot. Errors: data, saying what was looked for and
/// what is there.
[[nodiscard]] ResolvedModel resolve_model_folder(const std::filesystem::path& path);

/// Finds the checkpoint that "--resume DIR" means: it, or the newest complete one in it. Errors:
/// data, likewise.
[[nodiscard]] std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

}  // namespace terrace::checkpoint
