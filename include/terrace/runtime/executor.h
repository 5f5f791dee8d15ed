#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "terrace/io/page_store.h"
#include "terrace/optim/step_counter.h"
#include "terrace/runtime/optimizer_setup.h"
#include "terrace/runtime/run_context.h"
#include "terrace/runtime/step.h"

namespace terrace::runtime {

/// Runs a plan's schedules on lanes: streams of the device for compute and copies, host threads for
/// the disks and the optimizer. Up to `plan::kStepsInFlight` steps may be posted ahead, so that a
/// step's last updates run under the next one's forward; the numbers are the same as one after the
/// other. An error on a lane is kept, passed on to everything that waits for it and thrown once.
/// Single-owner.
class Executor {
 public:
  /// What a commit stores beside the pages, given what became of the step; called on the disk lane.
  using RunState = std::function<std::string(const StepOutcome&)>;

  /// The context has a store if the plan uses disks.
  Executor(const RunContext& context, const LaneOptions& lanes, const OptimizerSetup& optimizer,
           RunState run_state);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// The host memory of a micro-batch, [B, T] tokens then [B, T] targets, free to be filled for the
  /// next step or evaluation.
  struct HostBatch {
    std::span<std::int32_t> tokens;
    std::span<std::int32_t> targets;
  };
  [[nodiscard]] HostBatch host_batch(int micro_batch);

  /// Starts a step on the filled batches. Steps are posted in order; at most `plan::kStepsInFlight`
  /// may be unfinished.
  void post_step(const StepInputs& inputs);
  /// Blocks until the oldest unfinished step is complete, its commit included.
  [[nodiscard]] const StepOutcome& finish_step();
  [[nodiscard]] int steps_unfinished() const;
  /// What the disk lanes found they can do; none without disks.
  [[nodiscard]] std::optional<io::Capabilities> disk_capabilities() const;
  /// How the lanes spent the step that was finished last.
  [[nodiscard]] const StepTimes& last_times() const;

  /// The summed loss of micro-batch 0, forward only; no step may be unfinished. Nats.
  [[nodiscard]] double evaluate();
  /// In a plan to generate: the logits [V] behind position `row` (of B*T) of the batch; valid until
  /// the next call.
  [[nodiscard]] std::span<const float> logits(std::int32_t row);

  /// The optimizer's counters; no step may be unfinished.
  [[nodiscard]] const optim::StepCounter::State& counter() const;
  void restore(const optim::StepCounter::State& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace::runtime
