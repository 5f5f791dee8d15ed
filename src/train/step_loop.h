#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run_start.h"
#include "state_keeper.h"
#include "step_log.h"
#include "terrace/core/trace.h"
#include "terrace/runtime/executor.h"

namespace terrace::train {

/// The steps of a run, its evaluations and saves, and what is written of them. Single-owner.
class StepLoop {
 public:
  /// Prepares the lanes; where steps are committed, commits the beginning. The keeper has loaded
  /// the state, and all that is given outlives the loop.
  StepLoop(const RunStart& start, StateKeeper& keeper, const TrainContext& context, Watch& watch);

  /// Makes all steps, up to the last one or a signal, and keeps what is done. Returns the exit
  /// code.
  int run();

 private:
  void make_steps();
  /// Reads samples into a micro-batch's memory and returns the targets that count.
  [[nodiscard]] std::int64_t fill(const runtime::Executor::HostBatch& batch,
                                  data::SampleRange samples);
  void post(Step step);
  void finish();
  runtime::StepOutcome finish_step();
  /// After a step that was skipped: finds out whether the weights are the cause, and whether the
  /// run can go on. Errors: numerics.
  void answer_skip(const runtime::StepOutcome& skipped);
  /// Measures the validation loss for the last row. Where a signal cuts it short the step counts
  /// all the same, and it is measured when the run goes on.
  void evaluate_step();
  /// Whether the last run was cut short in the evaluation after its last step.
  [[nodiscard]] bool lacks_evaluation() const;

  // The end.
  [[nodiscard]] int complete();
  /// With `to_the_end` a signal lets it finish.
  void save_checkpoint(bool to_the_end = true);
  [[nodiscard]] checkpoint::CheckpointContents contents() const;
  void release();
  /// Makes sure that what is done outlives the end of the run; how far that is, as a clause.
  [[nodiscard]] std::string keep_steps();
  [[nodiscard]] int stop_for_signal(int signal);
  /// Ends the run because of what became of its data, once the steps done are kept.
  [[noreturn]] void stop_for_data(const Error& error);
  /// What else there is to do where the run ends before its last step.
  void end_early();

  // What is written.
  void open_log();
  void report(const runtime::StepOutcome& outcome, double step_seconds);
  [[nodiscard]] checkpoint::StepRow row_of(const runtime::StepOutcome& outcome) const;
  /// Adds to the history what it does not have yet of the step.
  void list(const checkpoint::StepRow& row);
  [[nodiscard]] std::string commit_state(const runtime::StepOutcome& outcome,
                                         std::vector<checkpoint::StepRow> rows) const;
  void write_record(bool finished = false) const;
  void write_trace();

  const RunStart& start_;
  StateKeeper& keeper_;
  const TrainContext& context_;
  Watch& watch_;
  std::unique_ptr<Trace> trace_;
  std::unique_ptr<runtime::Executor> executor_;
  std::unique_ptr<StepLog> log_;
  std::vector<checkpoint::LogRecord> history_;
  std::optional<Activity> first_step_;  ///< until it is done: no line shows any progress
  std::int64_t last_finish_us_ = 0;
  TimeLeft time_left_;
};

}  // namespace terrace::train
