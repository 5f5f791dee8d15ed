#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terrace/checkpoint/metrics_file.h"
#include "terrace/data/fingerprint.h"
#include "terrace/data/loader.h"
#include "terrace/io/checksum.h"
#include "terrace/io/run_id.h"

namespace terrace::checkpoint {

/// Settings by the names that users give them, as text.
using NamedValues = std::vector<std::pair<std::string, std::string>>;

/// One entry of the Trainer's `log_history`: what was logged at a step ("loss", "grad_norm",
/// "learning_rate", "eval_loss", ...). A value that is not finite is kept as null in JSON and comes
/// back as NaN.
struct LogRecord {
  std::int64_t step = 0;
  double epoch = 0;
  std::vector<std::pair<std::string, double>> values;

  friend bool operator==(const LogRecord&, const LogRecord&) = default;
};

/// The dynamic loss scale of fp16; not used otherwise.
struct LossScaleState {
  double scale = 1;
  std::int64_t good_steps = 0;  ///< since it last changed
  std::int64_t hysteresis_left = 0;
  friend bool operator==(const LossScaleState&, const LossScaleState&) = default;
};

/// A tokenizer's or model's file by its name and contents.
struct NamedFingerprint {
  std::string name;
  io::Fingerprint contents;
  friend bool operator==(const NamedFingerprint&, const NamedFingerprint&) = default;
};

/// What must be the same when a run goes on.
struct RunIdentity {
  std::uint64_t model = 0;  ///< `fingerprint_of` its configuration
  std::uint64_t seed = 0;
  std::vector<NamedFingerprint> tokenizer;  ///< its files; empty for bytes
  data::DatasetFingerprint data;
};

/// Refuses to go on with another model, tokenizer, data or seed than the run began with. `where`
/// is the checkpoint or store that it would go on from. Errors: data (usage for the seed), naming
/// what differs, what it was and what it is.
void require_same_run(const RunIdentity& began_with, const RunIdentity& found,
                      std::string_view where);

/// A run's small state: everything that is not a tensor. It is part of every checkpoint
/// (`trainer_state.json`) and, with an empty history, of every commit of the page store.
struct TrainerState {
  io::RunId run;                 ///< whose state it is; none of what was saved before runs had ids
  std::int64_t global_step = 0;  ///< steps done, skipped ones included
  double epoch = 0;
  std::int64_t adam_step = 0;  ///< updates done: the step of the bias correction
  std::int64_t skipped_steps = 0;
  std::int64_t skipped_in_a_row = 0;
  std::int64_t tokens_seen = 0;
  std::int64_t max_steps = 0;
  double num_train_epochs = 0;
  data::LoaderPosition loader;
  LossScaleState loss_scale;
  RunIdentity identity;
  /// Names and values for people: versions of Terrace and its libraries, hardware, world size.
  NamedValues versions;
  NamedValues numerics;  ///< settings that losses follow from
  NamedValues layout;    ///< settings that, beside those, the pages of a store follow from
  /// How the optimizer keeps its state, by the keys of the configuration: what decides whether
  /// another run can take the state over. Empty: not said.
  NamedValues state_form;
  std::vector<LogRecord> log_history;
  /// Of a commit: the last steps, whose rows in metrics.jsonl may be lost to a kill or power cut.
  std::vector<StepRow> rows;
};

/// The state as JSON text, in the Trainer's layout: its own `TrainerState.load_from_json` reads it.
/// What the Trainer has no place for stands under "stateful_callbacks", "terrace".
[[nodiscard]] std::string to_json(const TrainerState& state);

/// The inverse. Errors: corrupt, naming `where` and the key.
[[nodiscard]] TrainerState parse_trainer_state(std::string_view json, std::string_view where);

}  // namespace terrace::checkpoint
