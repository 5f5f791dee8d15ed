#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "metrics.h"
#include "optimizer_tasks.h"
#include "run_store.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/engine/executor.h"
#include "terrace/engine/planning.h"
#include "terrace/engine/run_setup.h"
#include "terrace/engine/state_transfer.h"
#include "terrace/engine/trainer.h"

namespace terrace::engine {

/// One training run, from settings to the final model. Members are in the order in which they are
/// built; each depends on earlier ones only.
class Trainer {
 public:
  Trainer(Settings settings, const TrainContext& context);
  int run();

 private:
  // Before anything is allocated.
  void prepare_data();
  void prepare_plan();
  void check_output() const;
  void prepare_output();
  void require_space_for_saving() const;
  void print_tables() const;
  [[nodiscard]] checkpoint::CheckpointContents contents() const;
  [[nodiscard]] OptimizerSetup optimizer_setup() const;
  [[nodiscard]] LaneRates lane_rates() const;

  // Where the state comes from.
  void allocate();
  void load_state();
  /// What a dead run of this output has committed, unless a checkpoint is newer; or null.
  [[nodiscard]] std::unique_ptr<RunStore> store_to_go_on_with() const;
  [[nodiscard]] bool resume_from_store();
  void resume_from_checkpoint(const std::filesystem::path& folder);
  void start_from_model();
  void adopt(const checkpoint::TrainerState& state, const std::string& where);
  void make_store();

  // The loop.
  [[nodiscard]] bool evaluates_at(Step step) const;
  [[nodiscard]] bool saves_at(Step step) const;
  /// After such a step everything is waited for.
  [[nodiscard]] bool is_boundary(Step step) const;
  [[nodiscard]] std::int64_t step_begin(Step step) const;
  void post(Step step);
  void finish();
  void save_checkpoint();
  void save_model();
  void write_record() const;
  [[nodiscard]] int complete();
  [[nodiscard]] int stop_for_signal(int signal);
  void report(const StepOutcome& outcome, double step_seconds, std::optional<double> eval_loss);

  [[nodiscard]] checkpoint::TrainerState trainer_state(Step step, std::int64_t updates,
                                                       std::int64_t skipped) const;
  [[nodiscard]] std::string commit_state(const StepOutcome& outcome) const;
  [[nodiscard]] double epoch_at(Step step) const;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> numerics() const;

  Settings settings_;
  TrainContext context_;
  std::filesystem::path output_;
  RunSetup setup_;
  RunData data_;
  data::BatchShape batch_;
  std::int64_t length_ = 0;  ///< tokens a sequence
  std::int64_t total_steps_ = 0;
  double learning_rate_ = 0;
  ChosenPlan chosen_;
  checkpoint::RunIdentity identity_;

  Workers workers_;
  std::unique_ptr<RunMemory> memory_;
  std::unique_ptr<RunStore> store_;
  std::unique_ptr<Trace> trace_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<StateTransfer> transfer_;
  std::unique_ptr<MetricsFile> metrics_;

  Step done_{0};  ///< steps finished, skipped ones included
  std::int64_t last_saved_ = -1;
  optim::StepCounter::State counters_;  ///< of the state that the run began with
  std::int64_t last_finish_us_ = 0;
  double flops_per_step_ = 0;
  std::vector<checkpoint::LogRecord> history_;
  TimeLeft time_left_;
};

}  // namespace terrace::engine
