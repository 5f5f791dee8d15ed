#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "terrace/plan/schedule.h"

namespace terrace::runtime {

/// When a task of one run of a schedule did what, on the clock of `now_us`.
struct TaskSpan {
  std::int64_t queued_us = 0;  ///< its turn on its lane came: of the compute lane's
  std::int64_t begin_us = 0;   ///< all that it waited for was there
  std::int64_t end_us = 0;
};

/// Why the compute lane waited. Each moment of a wait is the fault of the lane that worked for it
/// just then: of the task that was waited for, from its beginning on; before, of what that one
/// waited for last, and so on back to where the wait began. So a copy that came late because the
/// update did, which came late because of the gradient's copy, is the fault of each for the time
/// that it took. Immutable.
class WaitCauses {
 public:
  /// The schedule outlives this.
  explicit WaitCauses(const plan::Schedule& schedule);

  /// Of a run and those before it, the newest first, each by task.
  using Runs = std::span<const std::span<const TaskSpan>>;
  /// Microseconds of the newest run in which the compute lane waited, by the lane at fault.
  [[nodiscard]] std::array<std::int64_t, plan::kLanes> of(Runs runs) const;

 private:
  /// A task of the run that is `back` before, and when it let another one go on.
  struct Cause {
    int task = -1;  ///< -1: none
    int back = 0;
    std::int64_t end_us = 0;
  };

  [[nodiscard]] const plan::Task& task(int index) const {
    return schedule_.tasks[static_cast<std::size_t>(index)];
  }
  /// What the task waited for last; what is before it on its lane counts `with_lane`.
  [[nodiscard]] Cause last_cause(int index, int back, Runs runs, bool with_lane) const;
  void blame(int index, Runs runs, std::array<std::int64_t, plan::kLanes>& causes) const;

  const plan::Schedule& schedule_;
  std::vector<plan::Wait> before_;  ///< by task: the one before it on its lane
};

}  // namespace terrace::runtime
