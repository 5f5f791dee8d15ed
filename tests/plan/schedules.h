#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "terrace/plan/schedule.h"

namespace terrace::plan {

/// `schedule` without the wait at `index` of `schedule.waits`.
inline Schedule without_wait(Schedule schedule, int index) {
  for (Task& task : schedule.tasks) {
    if (index < task.first_wait || index >= task.first_wait + task.wait_count) continue;
    std::swap(schedule.waits[static_cast<std::size_t>(index)],
              schedule.waits[static_cast<std::size_t>(task.first_wait + task.wait_count - 1)]);
    --task.wait_count;
    return schedule;
  }
  ADD_FAILURE() << "no task has wait " << index;
  return schedule;
}

/// Adds an access to a task; accesses of all tasks stay contiguous.
inline void add_access(Schedule& schedule, std::size_t task, const Access& access) {
  Task& target = schedule.tasks[task];
  std::vector<Access> moved;
  for (const Access& old : schedule.accesses_of(target)) moved.push_back(old);
  moved.push_back(access);
  target.first_access = static_cast<int>(schedule.accesses.size());
  target.access_count = static_cast<int>(moved.size());
  schedule.accesses.insert(schedule.accesses.end(), moved.begin(), moved.end());
}

/// Runs a schedule for some steps in a random order that lanes and waits allow, a task having a
/// beginning and an end, and looks for what must not happen: two tasks that touch the same bytes,
/// one writing, under way at once or in another order than the serial one. It shares no code and no
/// idea with `check`.
class RandomRun {
 public:
  RandomRun(const Schedule& schedule, const memory::MemoryPlan& regions)
      : schedule_(schedule), regions_(regions) {}

  /// Whether some conflicting pair went wrong in this run.
  [[nodiscard]] bool goes_wrong(int steps, unsigned seed) {
    std::mt19937 random(seed);
    const auto count = static_cast<int>(schedule_.tasks.size());
    const int total = steps * count;
    std::vector<char> begun(static_cast<std::size_t>(total), 0);
    std::vector<char> ended(begun);
    for (int ends = 0; ends < total;) {
      // Lanes that can move, as (begins, position).
      std::vector<std::pair<bool, int>> moves;
      for (int lane = 0; lane < kLanes; ++lane) {
        add_moves(static_cast<Lane>(lane), total, begun, ended, moves);
      }
      if (moves.empty()) {
        ADD_FAILURE() << "the schedule is stuck";
        return true;
      }
      const auto [begins, position] = moves[random() % moves.size()];
      if (!begins) {
        ended[static_cast<std::size_t>(position)] = 1;
        ++ends;
        continue;
      }
      begun[static_cast<std::size_t>(position)] = 1;
      // Everything before it in the serial order that conflicts must have ended.
      for (int other = 0; other < total; ++other) {
        const bool wrong = other < position ? ended[static_cast<std::size_t>(other)] == 0
                                            : begun[static_cast<std::size_t>(other)] != 0;
        if (other != position && wrong && conflict(other % count, position % count)) return true;
      }
    }
    return false;
  }

 private:
  void add_moves(Lane lane, int total, const std::vector<char>& begun,
                 const std::vector<char>& ended, std::vector<std::pair<bool, int>>& moves) const {
    const auto count = static_cast<int>(schedule_.tasks.size());
    bool busy = false;
    for (int position = 0; position < total; ++position) {
      const Task& task = schedule_.tasks[static_cast<std::size_t>(position % count)];
      if (task.lane != lane || ended[static_cast<std::size_t>(position)]) continue;
      if (begun[static_cast<std::size_t>(position)]) {
        moves.emplace_back(false, position);
        busy = true;
        continue;
      }
      const bool free = !busy || !completes_in_order(lane);
      const bool ready = std::ranges::all_of(schedule_.waits_of(task), [&](const Wait& wait) {
        const int other = (position / count - wait.steps_back) * count + wait.task;
        return other < 0 || ended[static_cast<std::size_t>(other)];
      });
      if (free && ready) moves.emplace_back(true, position);
      return;  // nothing behind it on the lane begins before it
    }
  }

  [[nodiscard]] bool conflict(int first, int second) const {
    for (const Access& a :
         schedule_.accesses_of(schedule_.tasks[static_cast<std::size_t>(first)])) {
      for (const Access& b :
           schedule_.accesses_of(schedule_.tasks[static_cast<std::size_t>(second)])) {
        if (!a.write && !b.write) continue;
        const memory::Region& ra = regions_.region(a.region);
        const memory::Region& rb = regions_.region(b.region);
        const std::uint64_t a0 = ra.offset + a.offset;
        const std::uint64_t b0 = rb.offset + b.offset;
        if (ra.tier == rb.tier && a0 < b0 + b.bytes && b0 < a0 + a.bytes) return true;
      }
    }
    return false;
  }

  const Schedule& schedule_;
  const memory::MemoryPlan& regions_;
};

}  // namespace terrace::plan
