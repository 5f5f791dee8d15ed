#include "terrace/plan/simulate.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/error.h"

namespace terrace::plan {
namespace {

/// Steps that are run, and the last of them that are measured: the first ones find empty slots and
/// idle lanes. A rhythm over several steps is averaged.
constexpr int kSteps = 18;
constexpr int kMeasuredSteps = 6;

/// A rate of the profile, the key it is written under, and what measures it besides a person.
struct Figure {
  std::optional<double> rate;
  std::string_view key;
  std::string_view measured_by = "terrace bench all";
};

/// How long each task takes when nothing else is under way.
class Durations {
 public:
  Durations(const HardwareProfile& profile, DType compute) : profile_(profile), compute_(compute) {}

  [[nodiscard]] double seconds(const Task& task) const {
    if (task.kind == TaskKind::commit) return profile_.commit_seconds;
    const double overhead = completes_in_order(task.lane) ? profile_.task_seconds : 0;
    const double arithmetic = task.flops > 0 ? over(task.flops, flops_of_compute()) : 0;
    const double movement =
        task.bytes > 0 ? over(static_cast<double>(task.bytes), bytes_of(task.lane)) : 0;
    return overhead + arithmetic + movement;
  }

 private:
  [[nodiscard]] Figure flops_of_compute() const {
    switch (compute_) {
      case DType::bf16:
        return {profile_.bf16_flops_per_second, "bf16_flops_per_second"};
      case DType::f16:
        return {profile_.fp16_flops_per_second, "fp16_flops_per_second", ""};
      default:
        return {profile_.fp32_flops_per_second, "fp32_flops_per_second"};
    }
  }

  [[nodiscard]] Figure bytes_of(Lane lane) const {
    switch (lane) {
      case Lane::compute:
        return {profile_.device_bytes_per_second, "device_bytes_per_second"};
      case Lane::h2d:
        return {profile_.h2d_bytes_per_second, "h2d_bytes_per_second"};
      case Lane::d2h:
        return {profile_.d2h_bytes_per_second, "d2h_bytes_per_second"};
      case Lane::collective:
        return {profile_.collective_bytes_per_second, "collective_bytes_per_second", ""};
      case Lane::disk_read:
        return {profile_.disk_read_bytes_per_second, "disk_read_bytes_per_second",
                "terrace bench all --path DIR"};
      case Lane::disk_write:
        return {profile_.disk_write_bytes_per_second, "disk_write_bytes_per_second",
                "terrace bench all --path DIR"};
      case Lane::optimizer:
        return {profile_.optimizer_bytes_per_second, "optimizer_bytes_per_second"};
    }
    return {};
  }

  [[nodiscard]] double over(double amount, const Figure& figure) const {
    require(figure.rate.has_value() && *figure.rate > 0, ErrorKind::usage,
            "the hardware profile \"{}\" has no {}, which the time of this plan depends on: {}",
            profile_.name, figure.key, remedy(figure));
    return amount / *figure.rate;
  }

  [[nodiscard]] static std::string remedy(const Figure& figure) {
    if (figure.measured_by.empty()) return "no benchmark measures it, so write it into a profile";
    return fmt::format("measure it with {}, or write it into a profile", figure.measured_by);
  }

  const HardwareProfile& profile_;
  DType compute_;
};

/// The lanes' progress through `kSteps` steps.
class Simulation {
 public:
  Simulation(const Schedule& schedule, const HardwareProfile& profile,
             const SimulateOptions& options)
      : schedule_(schedule),
        profile_(profile),
        options_(options),
        steps_done_of_(schedule.tasks.size(), 0),
        tasks_done_of_(kSteps, 0),
        ended_(kSteps, 0) {
    const Durations durations(profile, options.compute);
    for (int task = 0; task < schedule.tasks.count(); ++task) {
      seconds_.push_back(durations.seconds(schedule.tasks[task]));
      lanes_[schedule.tasks[task].lane].tasks.push_back(task);
    }
  }

  Prediction run() {
    while (begin_ready(), advance()) {
    }
    require(steps_done_ == kSteps, ErrorKind::internal,
            "the schedule's tasks wait for each other in a circle in step {}", steps_done_);
    Prediction result;
    constexpr int kFirst = kSteps - kMeasuredSteps;
    result.step_seconds = (ended_.back() - ended_[kFirst - 1]) / kMeasuredSteps;
    for (const Lane lane : kAllLanes) {
      result.lanes[lane].busy_seconds = lanes_[lane].busy_seconds / kMeasuredSteps;
      result.waited_seconds[lane] = waited_[lane] / kMeasuredSteps;
    }
    for (const Task& task : schedule_.tasks) result.lanes[task.lane].bytes += task.bytes;
    return result;
  }

 private:
  struct LaneState {
    std::vector<int> tasks;  ///< of the schedule, in order
    int step = 0;            ///< of the task at `next`
    std::size_t next = 0;    ///< under way, or the next one to begin
    bool busy = false;
    double left_seconds = 0;  ///< of the task under way, at full speed
    double free_since = 0;
    double busy_seconds = 0;  ///< in the measured steps
    [[nodiscard]] bool done() const { return step == kSteps || tasks.empty(); }
  };

  [[nodiscard]] bool ready(const LaneState& lane) const {
    if (lane.step >= steps_done_ + options_.steps_in_flight) return false;
    const Task& task = schedule_.tasks[lane.tasks[lane.next]];
    return std::ranges::all_of(schedule_.waits_of(task), [&](const Wait& wait) {
      return steps_done_of_[wait.task] > lane.step - wait.steps_back;
    });
  }

  void begin_ready() {
    for (const Lane index : kAllLanes) {
      LaneState& lane = lanes_[index];
      if (lane.busy || lane.done() || !ready(lane)) continue;
      lane.busy = true;
      lane.left_seconds = seconds_[lane.tasks[lane.next]];
      if (index == Lane::compute && measured(lane.step)) {
        waited_[released_by_] += now_ - lane.free_since;
      }
    }
  }

  [[nodiscard]] bool busy(Lane lane) const { return lanes_[lane].busy; }

  /// Seconds of work that a lane does a second.
  [[nodiscard]] double speed(Lane lane) const {
    switch (lane) {
      case Lane::disk_read:
        return busy(Lane::disk_write) ? profile_.disk_mixed_factor : 1;
      case Lane::disk_write:
        return busy(Lane::disk_read) ? profile_.disk_mixed_factor : 1;
      case Lane::compute:
        return busy(Lane::optimizer) ? profile_.shared_cores_factor : 1;
      case Lane::optimizer:
        return busy(Lane::compute) ? profile_.shared_cores_factor : 1;
      default:
        return 1;
    }
  }

  /// Lets time pass up to the next end of a task; false when no task is under way.
  bool advance() {
    ByLane<double> speeds;
    double pass = std::numeric_limits<double>::infinity();
    std::optional<Lane> first;
    for (const Lane lane : kAllLanes) {
      if (!busy(lane)) continue;
      speeds[lane] = speed(lane);
      const double until = lanes_[lane].left_seconds / speeds[lane];
      if (until < pass) {
        pass = until;
        first = lane;
      }
    }
    if (!first) return false;
    now_ += pass;
    for (const Lane index : kAllLanes) {
      LaneState& lane = lanes_[index];
      if (!lane.busy) continue;
      lane.left_seconds = std::max(0.0, lane.left_seconds - pass * speeds[index]);
      if (measured(lane.step)) lane.busy_seconds += pass;
    }
    complete(*first);
    return true;
  }

  void complete(Lane index) {
    LaneState& lane = lanes_[index];
    released_by_ = index;
    lane.busy = false;
    lane.free_since = now_;
    ++steps_done_of_[lane.tasks[lane.next]];
    if (++tasks_done_of_[lane.step] == schedule_.tasks.size()) {
      ended_[lane.step] = now_;
      ++steps_done_;  // in order, as each lane is
    }
    if (++lane.next == lane.tasks.size()) {
      lane.next = 0;
      ++lane.step;
    }
  }

  [[nodiscard]] static bool measured(int step) { return step >= kSteps - kMeasuredSteps; }

  const Schedule& schedule_;
  const HardwareProfile& profile_;
  const SimulateOptions& options_;
  Indexed<double> seconds_;             ///< of each task, alone
  Indexed<int> steps_done_of_;          ///< of each task
  Indexed<std::size_t> tasks_done_of_;  ///< of each step
  Indexed<double> ended_;               ///< when a step's last task did
  ByLane<LaneState> lanes_;
  ByLane<double> waited_;             ///< the compute lane, in the measured steps
  Lane released_by_ = Lane::compute;  ///< that of the task that ended last
  int steps_done_ = 0;
  double now_ = 0;
};

}  // namespace

Lane Prediction::busiest() const {
  const auto longest = std::ranges::max_element(lanes, {}, &LaneTimes::busy_seconds);
  return static_cast<Lane>(longest - lanes.begin());
}

double mixed_factor(double read, double write, double mixed) {
  const double faster = std::max(read, write);
  const double slower = std::min(read, write);
  const double share = 1 / (faster * (2 / mixed - 1 / slower + 1 / faster));
  return share > 0 ? std::min(share, 1.0) : 1.0;
}

Prediction simulate(const Schedule& schedule, const HardwareProfile& profile,
                    const SimulateOptions& options) {
  require(options.steps_in_flight >= 1, ErrorKind::usage,
          "{} steps in flight were asked for; there must be at least one", options.steps_in_flight);
  require(
      profile.disk_mixed_factor > 0 && profile.shared_cores_factor > 0, ErrorKind::usage,
      "the hardware profile \"{}\" has a factor that is not above 0, with which some work never "
      "ends: correct it",
      profile.name);
  if (schedule.tasks.empty()) return {};
  return Simulation(schedule, profile, options).run();
}

}  // namespace terrace::plan
