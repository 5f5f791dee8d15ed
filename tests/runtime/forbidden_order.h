#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "plan/schedules.h"
#include "runtime/holding_disk.h"
#include "runtime/rig.h"

// Each wait of a schedule forbids an order of two tasks. Here a run does without the wait, and the
// forbidden order is brought about rather than left to chance.

namespace terrace::runtime::testing {

/// Runs a plan's steps with one wait's forbidden order: the task that should be waited for comes
/// after the one that should wait.
///
/// On a lane whose tasks complete in order it is made to wait for the other one. A task of a disk
/// lane begins where it would, so that what comes after it on its lane may go on, but none of its
/// bytes move before the other task is complete.
class ForbiddenOrders {
 public:
  /// Where the second step is skipped, its loss says nothing of what it read, and the third reads
  /// what the second has not changed: the fourth sees the update before it.
  static constexpr std::int64_t kSteps = 5;

  ForbiddenOrders(const plan::PlanRequest& request, std::int64_t skipped_step)
      : rig_(request, skipped_step), whole_(rig_.plan().training) {
    // The last step would wait for one that never comes.
    rig_.steps_left_ = 1;
    rig_.loaded_ = [this](io::MemoryDisk&) {
      events_.clear();
      hold_.on = hold_.count > 0;
    };
    rig_.wrap_driver_ = [this](std::unique_ptr<io::Driver> driver) {
      return std::make_unique<HoldingDriver>(std::move(driver), hold_);
    };
  }

  [[nodiscard]] const plan::Schedule& schedule() const { return whole_; }
  [[nodiscard]] const memory::MemoryPlan& regions() { return rig_.plan().memory; }

  /// The run with all waits.
  std::vector<StepResult> run_whole() {
    rig_.plan().training = whole_;
    hold_ = {};
    return run();
  }
  std::vector<StepResult> run_without(int index) {
    const plan::Wait& wait = whole_.waits[static_cast<std::size_t>(index)];
    const plan::Task& awaited = whole_.tasks[static_cast<std::size_t>(wait.task)];
    hold_ = {};
    if (pages_of(awaited) == 0) {
      rig_.plan().training = plan::with_wait_reversed(whole_, index);
    } else {
      rig_.plan().training = ready_in_pairs(plan::without_wait(whole_, index), wait.task);
      hold(wait, plan::task_with_wait(whole_, index));
    }
    return run();
  }

 private:
  /// A disk lane that waits for a transfer does not look whether its next task is ready meanwhile.
  /// So that the next one is under way when `task` is held, `task` begins when both are ready, if
  /// that can be.
  [[nodiscard]] plan::Schedule ready_in_pairs(plan::Schedule schedule, int task) {
    const plan::Lane lane = schedule.tasks[static_cast<std::size_t>(task)].lane;
    const auto next = std::find_if(schedule.tasks.begin() + task + 1, schedule.tasks.end(),
                                   [&](const plan::Task& other) { return other.lane == lane; });
    if (next == schedule.tasks.end() || plan::is_about_all_pages(next->kind)) return schedule;
    const plan::Schedule paired = plan::with_waits(schedule, task, schedule.waits_of(*next));
    return plan::is_stuck(paired) ? schedule : paired;
  }
  /// Pages that the task moves.
  [[nodiscard]] std::uint64_t pages_of(const plan::Task& task) {
    if (plan::is_about_all_pages(task.kind)) return 0;
    return static_cast<std::uint64_t>(
        std::ranges::count_if(whole_.accesses_of(task), [&](const plan::Access& access) {
          return regions().region(access.region).tier == memory::Tier::disk;
        }));
  }
  void hold(const plan::Wait& wait, int waiting) {
    const plan::Lane lane = whole_.tasks[static_cast<std::size_t>(wait.task)].lane;
    hold_.kind = lane == plan::Lane::disk_read ? io::Operation::read : io::Operation::write;
    hold_.a_step = 0;
    for (const plan::Task& task : whole_.tasks) {
      if (task.lane != lane) continue;
      if (&task == &whole_.tasks[static_cast<std::size_t>(wait.task)]) {
        hold_.first = hold_.a_step;
        hold_.count = pages_of(task);
      }
      hold_.a_step += pages_of(task);
    }
    hold_.until = waiting;
    hold_.steps_ahead = static_cast<std::uint64_t>(wait.steps_back);
    hold_.events = &events_;
  }
  std::vector<StepResult> run() {
    return rig_.run(std::make_unique<WatchedDevice>(device::make_seeded_device(1), events_),
                    std::make_shared<io::MemoryDisk>(io::MemoryDiskOptions{}), kSteps);
  }

  Rig rig_;
  plan::Schedule whole_;
  std::vector<device::Event*> events_;  ///< of the training schedule first
  Hold hold_;
};

}  // namespace terrace::runtime::testing
