#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "output_folder.h"
#include "run_store.h"
#include "terrace/checkpoint/training_checkpoint.h"

namespace terrace::train {

/// What a run goes on with. Decided in one place, before the plan is made, and without deleting
/// anything: what has to make room for the run is named here and goes only when what takes its
/// place is known to be good.
struct ResumePoint {
  /// At most one of the two is set; none: the run starts from its model.
  std::unique_ptr<RunStore> store;  ///< a dead run's, under its lock, with a committed step
  std::unique_ptr<checkpoint::TrainingCheckpoint> checkpoint;
  /// The small state that goes with it, its history included; of step 0 without.
  checkpoint::TrainerState state;
  /// Step of the newest checkpoint from which a user could go on, no later than `state`; -1: none.
  std::int64_t last_saved = -1;
  /// By which the run goes on: the output folder's, or another one where that folder is a copy.
  io::RunId run;
  /// What dead runs of this output have left that this run does not go on with, and can tell to be
  /// of no use beside what it goes on with. What cannot be looked into stays.
  std::vector<io::RunRecord> replaced;

  [[nodiscard]] bool starts_afresh() const { return !store && !checkpoint; }
  /// For messages; of a run that does not start afresh.
  [[nodiscard]] std::string place() const;
  /// Bytes that `remove_replaced` will give back on the drives of `--swap`.
  [[nodiscard]] std::uint64_t freed_bytes(const config::PlacementSettings& settings) const;
  /// Deletes `replaced`, and says so. Errors: `io`.
  void remove_replaced(Log& log);
};

/// Finds what `--resume` means: with "auto" the newest of the committed stores that dead runs of
/// this output's id have left (below `--swap`, or where `run.json` says that the run had them) and
/// the complete checkpoints of the output folder, the store when both are of one step. Says so when
/// there is nothing. A store that cannot be used, for whatever reason, is named, stays as it is,
/// and stands in no checkpoint's way.
///
/// An output folder that was copied has the id of the other. Their store is the other's, as long as
/// that folder is there, or a run with that store lives; so the copy goes on from a checkpoint, as
/// a run of its own. Where the other is gone, the copy is what the run was moved to.
///
/// Errors: `usage` when the run would begin before a step that is committed or saved in this
/// output, and so would come to remove it (unless it overwrites), when the store lies below a
/// folder that `--swap` does not name, or when the store is gone, cannot be used, or was removed in
/// part, and there is no checkpoint; as `checkpoint::resolve_checkpoint`,
/// `checkpoint::TrainingCheckpoint`.
[[nodiscard]] ResumePoint find_resume_point(const config::Settings& settings,
                                            const OutputFolder& output, Log& log);

}  // namespace terrace::train
