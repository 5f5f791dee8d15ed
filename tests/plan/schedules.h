#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/plan/schedule.h"
#include "terrace/plan/simulate.h"

namespace terrace::plan {

/// The task that has the wait at `index` of `schedule.waits`.
inline int task_with_wait(const Schedule& schedule, int index) {
  for (std::size_t task = 0; task < schedule.tasks.size(); ++task) {
    const int first = schedule.tasks[task].first_wait;
    if (index >= first && index < first + schedule.tasks[task].wait_count) {
      return static_cast<int>(task);
    }
  }
  ADD_FAILURE() << "no task has wait " << index;
  return 0;
}

/// `schedule` without the wait at `index` of `schedule.waits`.
inline Schedule without_wait(Schedule schedule, int index) {
  Task& task = schedule.tasks[static_cast<std::size_t>(task_with_wait(schedule, index))];
  std::swap(schedule.waits[static_cast<std::size_t>(index)],
            schedule.waits[static_cast<std::size_t>(task.first_wait + task.wait_count - 1)]);
  --task.wait_count;
  return schedule;
}

/// `schedule` with more waits of a task.
inline Schedule with_waits(Schedule schedule, int task, std::span<const Wait> more) {
  Task& target = schedule.tasks[static_cast<std::size_t>(task)];
  std::vector<Wait> waits(schedule.waits_of(target).begin(), schedule.waits_of(target).end());
  waits.insert(waits.end(), more.begin(), more.end());
  target.first_wait = static_cast<int>(schedule.waits.size());
  target.wait_count = static_cast<int>(waits.size());
  schedule.waits.insert(schedule.waits.end(), waits.begin(), waits.end());
  return schedule;
}

/// `schedule` with the wait at `index` turned round: the task that was waited for waits for the
/// other one, which may be one of the next step (`steps_back` is -1 then).
inline Schedule with_wait_reversed(const Schedule& schedule, int index) {
  const Wait wait = schedule.waits[static_cast<std::size_t>(index)];
  const Wait reversed{task_with_wait(schedule, index), -wait.steps_back};
  return with_waits(without_wait(schedule, index), wait.task, {&reversed, 1});
}

/// Whether tasks wait for each other in a circle, each lane working off its tasks in order.
inline bool is_stuck(const Schedule& schedule) {
  HardwareProfile any;
  for (auto* rate : {&any.h2d_bytes_per_second, &any.d2h_bytes_per_second,
                     &any.device_bytes_per_second, &any.collective_bytes_per_second,
                     &any.disk_read_bytes_per_second, &any.disk_write_bytes_per_second,
                     &any.optimizer_bytes_per_second, &any.bf16_flops_per_second}) {
    *rate = 1;
  }
  try {
    (void)simulate(schedule, any);
    return false;
  } catch (const Error&) {
    return true;
  }
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
    bool behind_all_pages = false;  // which is under way
    for (int position = 0; position < total; ++position) {
      const Task& task = schedule_.tasks[static_cast<std::size_t>(position % count)];
      if (task.lane != lane || ended[static_cast<std::size_t>(position)]) continue;
      if (begun[static_cast<std::size_t>(position)]) {
        moves.emplace_back(false, position);
        busy = true;
        behind_all_pages = is_about_all_pages(task.kind);
        continue;
      }
      const bool alone = completes_in_order(lane) || is_about_all_pages(task.kind);
      const bool free = !busy || !(alone || behind_all_pages);
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
