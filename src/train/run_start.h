#pragma once

#include <cstdint>
#include <memory>

#include "output_folder.h"
#include "resume_point.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/config/planning.h"
#include "terrace/optim/step_counter.h"
#include "terrace/runtime/optimizer_setup.h"
#include "terrace/runtime/step.h"
#include "terrace/train/run_setup.h"
#include "terrace/train/trainer.h"
#include "terrace/train/watch.h"

namespace terrace::train {

/// What a run is, known before anything is allocated: settings, model, data, what it goes on with,
/// plan, and which step does what. Members are in the order in which they are built. Once it is
/// made only `beginning` and `weights` change, whose contents are taken when the state is loaded.
struct RunStart {
  /// Errors: all that is known by now to end the run.
  RunStart(config::Settings settings_in, const TrainContext& context, Watch& watch);

  /// What can be known to fail without allocating anything: weights, drives, space.
  void check();

  /// The step that the run goes on after.
  [[nodiscard]] Step step() const { return Step(beginning.state.global_step); }
  /// Samples that the run has consumed when the step is done.
  [[nodiscard]] std::int64_t samples_after(Step step) const;
  /// At the end of an epoch fewer than a full step's.
  [[nodiscard]] data::SampleRange samples_of(Step step) const;
  [[nodiscard]] double epoch_at(Step step) const;
  [[nodiscard]] bool evaluates_at(Step step) const;
  [[nodiscard]] bool saves_at(Step step) const;
  /// After such a step everything is waited for.
  [[nodiscard]] bool is_boundary(Step step) const;
  /// Whether progress is shown, and the history lists the step.
  [[nodiscard]] bool shows(Step step) const;

  [[nodiscard]] optim::LearningRateSchedule schedule() const;
  [[nodiscard]] runtime::OptimizerSetup optimizer_setup() const;
  [[nodiscard]] runtime::LaneRates lane_rates() const;
  /// Without rows and history.
  [[nodiscard]] checkpoint::TrainerState trainer_state(
      Step step, const optim::StepCounter::State& counters) const;
  [[nodiscard]] checkpoint::CheckpointContents contents(checkpoint::TrainerState state) const;

  config::Settings settings;
  OutputFolder output;
  RunSetup setup;
  RunData data;
  data::BatchShape batch;
  std::int64_t length = 0;  ///< tokens a sequence
  std::int64_t total_steps = 0;
  double learning_rate = 0;
  checkpoint::NamedValues numerics;  ///< see `checkpoint::TrainerState`
  checkpoint::NamedValues layout;
  checkpoint::RunIdentity identity;
  ResumePoint beginning;
  std::int64_t samples_at_beginning = 0;  ///< consumed when `beginning` was saved
  StepRange traced;                       ///< none where the last is before the first
  config::ChosenPlan chosen;
  double flops_per_step = 0;                          ///< of a full one
  std::unique_ptr<checkpoint::ModelWeights> weights;  ///< to begin with; null for a preset

 private:
  void prepare_data();
  void prepare_beginning();
  /// What the run keeps of its settings, and what has changed since the state it goes on with.
  void record_settings();
  /// Of --trace_steps those that are to come.
  void choose_traced_steps();
  void prepare_plan();
  void shorten_trace();
  void warn_of_profile() const;
  [[nodiscard]] config::Settings compared_settings() const;
  [[nodiscard]] std::int64_t checkpoints_to_come() const;
  void require_space_for_saving() const;

  const TrainContext& context_;
  Watch& watch_;
};

}  // namespace terrace::train
