#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "terrace/core/id.h"
#include "terrace/core/trace.h"
#include "terrace/plan/plan.h"

namespace terrace::runtime {

/// What a step is given beside its batches.
struct StepInputs {
  Step step;
  std::int64_t target_tokens = 0;  ///< of the whole global batch; the loss is their mean
};

/// What became of a step.
struct StepOutcome {
  Step step;
  double loss = 0;  ///< mean over the target tokens, nats
  double grad_norm = 0;
  double learning_rate = 0;
  double gradient_scale = 1;  ///< clip factor / loss scale
  std::int64_t updates = 0;   ///< done so far, this step's included
  std::int64_t skipped = 0;   ///< steps skipped so far
  std::int64_t skipped_in_a_row = 0;
  bool skip = false;      ///< loss or gradients were not finite; nothing was changed
  bool gives_up = false;  ///< it is one skip in a row too many
  std::string nonfinite;  ///< of a skip, what was not: "the loss", "the gradient of w"
};

/// Work a second to which each lane is held, by `plan::Lane`: FLOP on the compute lane, the bytes
/// of its tasks on the others; 0: as fast as it goes. Holding a lane changes no number.
using LaneRates = std::array<double, plan::kLanes>;

/// In debug builds released memory is overwritten.
#ifdef NDEBUG
inline constexpr bool kOverwriteReleased = false;
#else
inline constexpr bool kOverwriteReleased = true;
#endif

/// How lanes run, whatever they run.
struct LaneOptions {
  Trace* trace = nullptr;  ///< lanes as `plan::Lane`; null: none
  LaneRates rates = {};
  /// Memory that a step gives back is overwritten at once, so that whoever reads it too early or
  /// too late sees nothing that could pass for a number. Where the host can touch it.
  bool overwrite_released = kOverwriteReleased;
};

/// How the lanes spent a step. Each lane writes its own row.
struct StepTimes {
  struct LaneTimes {
    std::int64_t busy_us = 0;
    std::uint64_t bytes = 0;
  };
  std::array<LaneTimes, plan::kLanes> lanes;
  /// Time that the compute lane waited, by the lane whose fault it was; once the step is finished.
  std::array<std::int64_t, plan::kLanes> waited_us{};

  [[nodiscard]] LaneTimes& of(plan::Lane lane) { return lanes[static_cast<std::size_t>(lane)]; }
  [[nodiscard]] const LaneTimes& of(plan::Lane lane) const {
    return lanes[static_cast<std::size_t>(lane)];
  }
  [[nodiscard]] std::int64_t waited_for_us(plan::Lane lane) const {
    return waited_us[static_cast<std::size_t>(lane)];
  }
};

/// What is kept a step is kept for so many.
inline constexpr int kStepSlots = 2 * plan::kStepsInFlight;

}  // namespace terrace::runtime
