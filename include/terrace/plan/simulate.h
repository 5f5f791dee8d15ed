#pragma once

#include <cstdint>

#include "terrace/core/dtype.h"
#include "terrace/plan/hardware_profile.h"
#include "terrace/plan/schedule.h"

namespace terrace::plan {

/// What a schedule does a step once its steps follow each other evenly.
struct Prediction {
  struct LaneTimes {
    double busy_seconds = 0;  ///< with a task under way
    std::uint64_t bytes = 0;
  };
  double step_seconds = 0;
  ByLane<LaneTimes> lanes;
  /// What the compute lane waited for, by the lane of the task whose end let it go on. With its
  /// busy time this adds up to the step.
  ByLane<double> waited_seconds;

  [[nodiscard]] const LaneTimes& of(Lane lane) const { return lanes[lane]; }
  /// The lane that is busy longest: with the lanes hampering each other as they did, no order of
  /// work could make the step shorter than that.
  [[nodiscard]] Lane busiest() const;
};

struct SimulateOptions {
  DType compute = DType::bf16;
  /// Steps that may be under way at once: one begins when the one so many before it is complete.
  int steps_in_flight = 2;
};

/// Runs the schedule for several steps on a modelled clock, its lanes and waits as an executor has
/// them, and returns the mean over the last steps.
///
/// Note on the modelled clock. Each lane works off its tasks one after the other, at the profile's
/// rate of that lane. The disk lanes too: transfers are begun in order, and requests reach a drive
/// in that order, so that a transfer that is begun while another is under way is served behind it.
/// While both disk lanes are busy each runs at `disk_mixed_factor` of its rate, while compute and
/// optimizer lane both are at `shared_cores_factor` of theirs. Time passes from one end of a task
/// to the next.
///
/// Pure: same arguments, same result. Errors: usage, naming the figure that `profile` lacks.
[[nodiscard]] Prediction simulate(const Schedule& schedule, const HardwareProfile& profile,
                                  const SimulateOptions& options = {});

}  // namespace terrace::plan
