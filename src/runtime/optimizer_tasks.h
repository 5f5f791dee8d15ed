#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "optimizer_streams.h"
#include "program.h"
#include "terrace/optim/gradient_norm.h"
#include "terrace/optim/loss_scaler.h"
#include "terrace/optim/optimizer.h"
#include "terrace/optim/schedule.h"
#include "terrace/optim/step_counter.h"
#include "terrace/runtime/optimizer_setup.h"

namespace terrace::runtime {

/// The tasks of the optimizer lane: the norm of each flat, the decision, the update of each chunk.
/// Single-owner: the lane's thread, but for what is said to be otherwise.
class OptimizerTasks {
 public:
  OptimizerTasks(const RunContext& context, const OptimizerSetup& setup);

  /// Before a run is posted, from the posting thread: what `decide` needs of the step.
  void prepare(std::uint64_t sequence, const StepInputs& inputs);
  void run(const plan::Task& task, std::uint64_t sequence);

  /// After the decision, from any thread until kStepSlots runs later.
  [[nodiscard]] const StepOutcome& outcome(std::uint64_t sequence) const {
    return outcomes_[sequence % kStepSlots];
  }

  /// The counters, between steps.
  [[nodiscard]] const optim::StepCounter::State& counter() const { return counter_.state(); }
  void restore(const optim::StepCounter::State& state) { counter_.restore(state); }

 private:
  void add_norm(const plan::Task& task);
  void decide(std::uint64_t sequence);
  void update(const plan::Task& task, const StepOutcome& outcome);
  /// What the step under way will have come to if it is not skipped: updates before the decision
  /// are done with it.
  [[nodiscard]] StepOutcome undecided() const;
  /// In a skipped step: where the parameter goes to the device through a slot, which holds another
  /// chunk's, it is made again from the master, whose rounding it is.
  void keep_parameter(const plan::Task& task);
  [[nodiscard]] std::string tensor_at(int flat, std::int64_t element) const;

  RunContext context_;
  OptimizerSetup setup_;
  OptimizerStreams streams_;
  device::Buffer square_sums_;  ///< pinned, of one `kernels::SquareSums`
  optim::Optimizer optimizer_;
  optim::StepCounter counter_;
  optim::GradientNorm norm_;
  std::string nonfinite_parameter_;
  std::vector<std::int64_t> first_index_;  ///< [flat]: its first element's number in the model
  std::array<StepInputs, kStepSlots> inputs_;
  std::array<StepOutcome, kStepSlots> outcomes_;
};

}  // namespace terrace::runtime
