#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "output_folder.h"
#include "resume_point.h"
#include "step_log.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/config/planning.h"
#include "terrace/runtime/executor.h"
#include "terrace/runtime/state_transfer.h"
#include "terrace/train/run_setup.h"
#include "terrace/train/trainer.h"
#include "terrace/train/watch.h"

namespace terrace::train {

/// One training run, from settings to the final model. Members are in the order in which they are
/// built; each depends on earlier ones only.
class Trainer {
 public:
  Trainer(config::Settings settings, const TrainContext& context);
  int run();
  /// What is reserved, by tier and purpose, to the log: before the run, and when memory gave out.
  void print_memory() const;
  /// The newest state that the run could go on with, for messages; empty: none.
  [[nodiscard]] std::string last_good() const;

 private:
  // Before anything is allocated.
  void prepare_data();
  void prepare_beginning();
  /// What the run keeps of its settings, and what has changed since the state it goes on with.
  void record_settings();
  void prepare_plan();
  /// Of --trace_steps those that are to come. Once the beginning is known.
  void choose_traced_steps();
  void shorten_trace();
  void warn_of_profile() const;
  void warn_of_schedule() const;
  /// What can be known to fail without allocating anything: weights, drives, space.
  void check_beginning();
  [[nodiscard]] std::int64_t checkpoints_to_come() const;
  void require_space_for_saving() const;
  void print_tables() const;
  [[nodiscard]] std::string describe_data() const;
  [[nodiscard]] std::string describe_steps() const;
  [[nodiscard]] checkpoint::CheckpointContents contents() const;
  [[nodiscard]] runtime::OptimizerSetup optimizer_setup() const;
  [[nodiscard]] runtime::LaneRates lane_rates() const;
  [[nodiscard]] config::Settings compared_settings() const;
  [[nodiscard]] optim::LearningRateSchedule schedule() const;

  // Where the state comes from.
  /// All of it, up to the first step. What a stop cuts short leaves nothing of the run on its
  /// drives.
  void load();
  void allocate();
  void load_state();
  void load_from_store();
  void load_from_checkpoint();
  void load_from_model();
  /// Makes what holds the state and fills it from `source`, with its `moments` or with none;
  /// `doing` is what is told of it. Errors: numerics, for weights that the compute type does not
  /// hold.
  void fill_state(checkpoint::StateSource& source, bool moments, std::string doing);
  /// Errors: kind `kind`, naming the tensor, when the masters as they are have values that the
  /// compute type does not hold; `occasion` begins the sentence.
  void require_held_weights(ErrorKind kind, const std::string& occasion);
  /// What to do when the weights are of no use, as the end of a sentence.
  [[nodiscard]] std::string way_back() const;
  /// Runs a save; to an error of the numbers in it is added what to do.
  template <class Save>
  auto with_way_back(Save&& save) const {
    try {
      return save();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::numerics) throw;
      fail(ErrorKind::numerics, "{}; {}", error.what(), way_back());
    }
  }
  void make_store();
  void make_transfer();
  [[nodiscard]] runtime::RunContext run_context() const;
  void make_executor();

  // The loop.
  /// Steps, evaluations and saves, up to the last step or a signal.
  void make_steps();
  [[nodiscard]] bool evaluates_at(Step step) const;
  [[nodiscard]] bool saves_at(Step step) const;
  /// After such a step everything is waited for.
  [[nodiscard]] bool is_boundary(Step step) const;
  /// Samples that the run has consumed when the step is done.
  [[nodiscard]] std::int64_t samples_after(Step step) const;
  /// At the end of an epoch fewer than a full step's.
  [[nodiscard]] data::SampleRange samples_of(Step step) const;
  /// Whether each step is in the store when it is done.
  [[nodiscard]] bool commits_steps() const;
  /// Reads samples into a micro-batch's memory and returns the targets that count.
  [[nodiscard]] std::int64_t fill(const runtime::Executor::HostBatch& batch,
                                  data::SampleRange samples);
  void post(Step step);
  void finish();
  runtime::StepOutcome finish_step();
  /// After a step that was skipped: finds out whether the weights are the cause, and whether the
  /// run can go on. Errors: numerics.
  void answer_skip(const runtime::StepOutcome& skipped);
  /// With `to_the_end` a signal lets it finish.
  void save_checkpoint(bool to_the_end = true);
  void remove_old_checkpoints();
  void save_model();
  void write_record(bool finished = false) const;
  void write_trace();
  /// Tells the watch what is kept by now, and what the run is about.
  void answer_signals(const std::string& doing, double seconds = 0);
  /// Gives back what only a run that goes on needs, the store too.
  void release();
  [[nodiscard]] int complete();
  /// Makes sure that what is done outlives the end of the run; how far that is, as a clause.
  [[nodiscard]] std::string keep_steps();
  [[nodiscard]] int stop_for_signal(int signal);
  /// What else there is to do where the run ends before its last step.
  void end_early();
  /// Ends the run because of what became of its data, once the steps done are kept.
  [[noreturn]] void stop_for_data(const Error& error);
  void report(const runtime::StepOutcome& outcome, double step_seconds);

  // What is written of each step.
  void open_log();
  [[nodiscard]] checkpoint::StepRow row_of(const runtime::StepOutcome& outcome) const;
  /// Whether progress is shown, and the history lists the step.
  [[nodiscard]] bool shows(Step step) const;
  /// Adds to the history what it does not have yet of the step.
  void list(const checkpoint::StepRow& row);
  /// Whether the last run was cut short in the evaluation after its last step.
  [[nodiscard]] bool lacks_evaluation() const;
  /// Measures the validation loss for the last row. Where a signal cuts it short the step counts
  /// all the same, and it is measured when the run goes on.
  void evaluate_step();

  [[nodiscard]] checkpoint::TrainerState trainer_state(Step step, std::int64_t updates,
                                                       std::int64_t skipped) const;
  [[nodiscard]] std::string commit_state(const runtime::StepOutcome& outcome,
                                         std::vector<checkpoint::StepRow> rows) const;
  /// The most that a commit's run state may take.
  [[nodiscard]] std::uint64_t commit_state_bytes_max() const;
  [[nodiscard]] double epoch_at(Step step) const;

  config::Settings settings_;
  TrainContext context_;
  Watch watch_;
  OutputFolder output_;
  RunSetup setup_;
  RunData data_;
  data::BatchShape batch_;
  std::int64_t length_ = 0;  ///< tokens a sequence
  std::int64_t total_steps_ = 0;
  double learning_rate_ = 0;
  checkpoint::NamedValues numerics_;  ///< see `checkpoint::TrainerState`
  checkpoint::NamedValues layout_;
  config::ChosenPlan chosen_;
  checkpoint::RunIdentity identity_;
  ResumePoint beginning_;
  std::int64_t samples_at_beginning_ = 0;              ///< consumed when `beginning_` was saved
  std::unique_ptr<checkpoint::ModelWeights> weights_;  ///< to begin with; null for a preset

  Workers workers_;
  std::unique_ptr<runtime::RunMemory> memory_;
  std::unique_ptr<RunStore> store_;
  StepRange traced_;  ///< none where the last is before the first
  std::unique_ptr<Trace> trace_;
  std::unique_ptr<runtime::Executor> executor_;
  std::unique_ptr<runtime::StateTransfer> transfer_;
  std::unique_ptr<StepLog> log_;

  Step done_{0};  ///< steps finished, skipped ones included
  std::int64_t last_saved_ = -1;
  double save_seconds_ = 0;             ///< of the last checkpoint; 0: none was saved
  std::optional<Activity> first_step_;  ///< until it is done: no line shows any progress
  optim::StepCounter::State counters_;  ///< of the state that the run began with
  std::int64_t last_finish_us_ = 0;
  double flops_per_step_ = 0;  ///< of a full one
  std::vector<checkpoint::LogRecord> history_;
  TimeLeft time_left_;
};

}  // namespace terrace::train
