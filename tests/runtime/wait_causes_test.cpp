#include "wait_causes.h"

#include <gtest/gtest.h>

#include <map>

namespace terrace::runtime {
namespace {

using plan::Lane;

/// A schedule of tasks with nothing but their lanes and waits.
struct Tasks {
  plan::Schedule schedule;
  std::vector<TaskSpan> spans;
  std::vector<TaskSpan> before;  ///< of the run before; none: it is the first

  int add(Lane lane, TaskSpan span, const std::vector<plan::Wait>& waits = {}) {
    plan::Task task;
    task.lane = lane;
    task.kind = plan::TaskKind::update;
    task.first_wait = static_cast<int>(schedule.waits.size());
    task.wait_count = static_cast<int>(waits.size());
    schedule.waits.insert(schedule.waits.end(), waits.begin(), waits.end());
    schedule.tasks.push_back(task);
    spans.push_back(span);
    return static_cast<int>(schedule.tasks.size()) - 1;
  }
  /// Lanes at fault for some time.
  [[nodiscard]] std::map<Lane, std::int64_t> causes() const {
    std::vector<std::span<const TaskSpan>> runs = {spans};
    if (!before.empty()) runs.emplace_back(before);
    const auto all = WaitCauses(schedule).of(runs);
    std::map<Lane, std::int64_t> found;
    for (int lane = 0; lane < plan::kLanes; ++lane) {
      if (all[static_cast<std::size_t>(lane)] != 0) {
        found[static_cast<Lane>(lane)] = all[static_cast<std::size_t>(lane)];
      }
    }
    return found;
  }
};

TEST(WaitCauses, follow_the_chain_to_what_worked_while_compute_waited) {
  Tasks tasks;
  const int backward = tasks.add(Lane::compute, {0, 0, 100});
  const int gradient = tasks.add(Lane::d2h, {0, 100, 900}, {{backward, 0}});
  const int update = tasks.add(Lane::optimizer, {0, 900, 950}, {{gradient, 0}});
  const int fetch = tasks.add(Lane::h2d, {0, 950, 1000}, {{update, 0}});
  tasks.add(Lane::compute, {100, 1000, 1100}, {{fetch, 0}});
  EXPECT_EQ(tasks.causes(), (std::map<Lane, std::int64_t>{
                                {Lane::d2h, 800}, {Lane::optimizer, 50}, {Lane::h2d, 50}}));
}

TEST(WaitCauses, count_no_wait_of_another_lane_while_compute_worked) {
  Tasks tasks;
  const int backward = tasks.add(Lane::compute, {0, 0, 900});
  // It waited for the gradient all the time, which is no fault of the gradient's.
  const int gradient = tasks.add(Lane::d2h, {0, 900, 901}, {{backward, 0}});
  const int update = tasks.add(Lane::optimizer, {0, 901, 1000}, {{gradient, 0}});
  tasks.add(Lane::compute, {950, 1000, 1100}, {{update, 0}});
  EXPECT_EQ(tasks.causes(), (std::map<Lane, std::int64_t>{{Lane::optimizer, 50}}));
}

TEST(WaitCauses, go_on_with_what_was_before_on_the_lane) {
  Tasks tasks;
  const int read = tasks.add(Lane::disk_read, {0, 0, 500});
  tasks.add(Lane::optimizer, {0, 500, 600}, {{read, 0}});
  const int second = tasks.add(Lane::optimizer, {0, 600, 700});
  tasks.add(Lane::compute, {100, 700, 800}, {{second, 0}});
  EXPECT_EQ(tasks.causes(),
            (std::map<Lane, std::int64_t>{{Lane::disk_read, 400}, {Lane::optimizer, 200}}));
}

TEST(WaitCauses, reach_into_the_run_before) {
  Tasks tasks;
  const int gradient = tasks.add(Lane::d2h, {0, 5000, 5100});
  const int update = tasks.add(Lane::optimizer, {0, 5100, 5200}, {{gradient, 0}});
  tasks.add(Lane::compute, {50, 1000, 1200}, {{update, 1}});
  tasks.before = {{0, 0, 800}, {0, 800, 1000}, {0, 0, 0}};
  EXPECT_EQ(tasks.causes(),
            (std::map<Lane, std::int64_t>{{Lane::d2h, 750}, {Lane::optimizer, 200}}));
}

TEST(WaitCauses, take_transfers_of_a_disk_as_many_at_once) {
  Tasks tasks;
  const int update = tasks.add(Lane::optimizer, {0, 0, 300});
  tasks.add(Lane::disk_read, {0, 300, 900}, {{update, 0}});
  const int second = tasks.add(Lane::disk_read, {0, 301, 700});
  tasks.add(Lane::compute, {100, 700, 800}, {{second, 0}});
  EXPECT_EQ(tasks.causes(),
            (std::map<Lane, std::int64_t>{{Lane::optimizer, 200}, {Lane::disk_read, 400}}));
}

}  // namespace
}  // namespace terrace::runtime
