#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

// The rows of a run's `metrics.jsonl`: one line a step, in the order of steps. A step's row is
// written after the step is committed, and is durable later still, so that a kill or a power cut
// may lose the last ones. A commit therefore carries the results of those that may be lost, and
// they are written again when the run goes on.

namespace terrace::checkpoint {

/// What a step's row says of its result; the rest of it is how long the step took. A value that is
/// not finite is null in JSON and comes back as NaN.
struct StepRow {
  std::int64_t step = 0;
  double epoch = 0;
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
  std::int64_t tokens = 0;   ///< target tokens of the step, all ranks
  std::int64_t skipped = 0;  ///< steps skipped so far
  std::string nonfinite;     ///< of a skipped step: the parameter whose gradient was not finite
  std::optional<double> eval_loss;

  friend bool operator==(const StepRow&, const StepRow&) = default;
};

/// The last step of which a `metrics.jsonl` has a row; 0 when it has none or is not there.
[[nodiscard]] std::int64_t last_logged_step(const std::filesystem::path& metrics);

/// A row that belongs into the file, and the line for it where it is missing, without its end.
struct KnownRow {
  StepRow row;
  std::string line;
};

struct SettledRows {
  std::size_t dropped = 0;      ///< rows of later steps, rows that another one doubles, torn lines
  std::size_t restored = 0;     ///< rows, or validation losses of rows, that were missing
  std::vector<StepRow> rows;    ///< those in the file now, of the steps that were asked for
  std::optional<StepRow> last;  ///< the row on the last line, if there is one
};

/// Brings a `metrics.jsonl` to where a run goes on: rows of steps after `step` and what a kill cut
/// short go, of `known` what is missing is put in its place, so that each step has one row, in the
/// order of steps. Lines without a step stay. The file is replaced atomically, and only if
/// something changes; one that is missing is made if a row is known. `known` is in the order of
/// steps. Returns the rows of the steps after `after`. Errors: io.
[[nodiscard]] SettledRows settle_rows(const std::filesystem::path& metrics, std::int64_t step,
                                      std::span<const KnownRow> known, std::int64_t after);

}  // namespace terrace::checkpoint
