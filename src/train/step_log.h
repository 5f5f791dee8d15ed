#pragma once

#include <cstddef>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "metrics.h"
#include "terrace/checkpoint/metrics_file.h"
#include "terrace/io/file.h"

namespace terrace::train {

/// A run's `metrics.jsonl`, as durable as its steps: where steps are committed, each commit carries
/// the results of those whose rows may not be durable yet. The owner's thread writes; `commit` may
/// be called from another one.
///
/// A step's row is written as soon as the step is done, and its validation loss is added when it is
/// known, in the place of the line's end: what a kill leaves of that line is repaired from the
/// commit.
class StepLog {
 public:
  /// Rows that are written before they are made durable, and the most that a commit carries: those,
  /// the steps under way, and one that was evaluated since.
  static constexpr std::size_t kUnsyncedMax = 16;
  static constexpr std::size_t kCarriedMax = kUnsyncedMax + runtime::kStepSlots + 1;

  /// Brings the file to `step`, with `carried` from the commit that the run goes on from, and opens
  /// it. `settled` keeps the rows of steps after `after`. What is in it then is durable. Errors:
  /// io.
  StepLog(const std::filesystem::path& path, const plan::Plan& plan, std::int64_t step,
          std::span<const checkpoint::StepRow> carried, std::int64_t after);

  [[nodiscard]] const checkpoint::SettledRows& settled() const { return settled_; }

  /// The rows that the commit of the step has to carry, its own last. Thread-safe.
  [[nodiscard]] std::vector<checkpoint::StepRow> commit(const checkpoint::StepRow& row);

  /// Appends the step's row. Errors: io.
  void write(const checkpoint::StepRow& row, const StepTiming& timing);
  /// Adds its validation loss to the last row. Errors: io.
  void add_evaluation(double loss);
  /// The last row; of the run's beginning if none was written; none if that has no row here.
  [[nodiscard]] const std::optional<checkpoint::StepRow>& last() const { return last_; }
  /// Makes all rows durable: no commit carries them any more. Errors: io.
  void sync();

 private:
  const plan::Plan& plan_;
  checkpoint::SettledRows settled_;
  std::optional<io::GrowingFile> file_;
  std::optional<checkpoint::StepRow> last_;
  std::size_t unsynced_ = 0;

  std::mutex mutex_;
  std::vector<checkpoint::StepRow> carried_;
};

}  // namespace terrace::train
