#include "lifetimes.h"

#include <map>
#include <set>
#include <utility>

namespace terrace::runtime {
namespace {

using memory::RegionId;
using plan::Access;
using plan::Task;

/// The regions that are some state's home, so that slots are what else a chunk's tasks touch.
std::set<int> homes_of(const plan::Plan& plan) {
  std::set<int> homes;
  for (const auto& places : plan.state) {
    for (const plan::Place& place : places) homes.insert(place.region.value);
  }
  for (const plan::Place& place : plan.parameter) homes.insert(place.region.value);
  for (const RegionId region : plan.host_parameter) homes.insert(region.value);
  for (const RegionId region : plan.gradient) homes.insert(region.value);
  return homes;
}

/// Two accesses to the same bytes are ordered by their lane or, where one of them writes, by a
/// wait.
bool ordered(const plan::Schedule& schedule, const std::pair<int, Access>& first,
             const std::pair<int, Access>& last) {
  const plan::Lane lane = schedule.tasks[static_cast<std::size_t>(last.first)].lane;
  const bool same_lane = schedule.tasks[static_cast<std::size_t>(first.first)].lane == lane;
  return (same_lane && completes_in_order(lane)) || first.first == last.first ||
         first.second.write || last.second.write;
}

}  // namespace

std::vector<Lifetime> lifetimes(const plan::Plan& plan, const plan::Schedule& schedule) {
  const std::set<int> homes = homes_of(plan);
  // By region and, where that is for ever, by chunk or micro-batch.
  std::map<std::pair<int, int>, std::vector<std::pair<int, Access>>> uses;
  for (std::size_t index = 0; index < schedule.tasks.size(); ++index) {
    const Task& task = schedule.tasks[index];
    const bool boundary = plan::moves_boundary(task.kind);
    for (const Access& access : schedule.accesses_of(task)) {
      const memory::Region& region = plan.memory.region(access.region);
      const bool slot = (task.chunk >= 0 || boundary) && region.tier == memory::Tier::host &&
                        !homes.contains(access.region.value);
      if (region.tier == memory::Tier::disk || (region.persistent() && !slot)) continue;
      const int user = boundary ? task.micro_batch : task.chunk;
      uses[{access.region.value, region.persistent() ? user : -1}].emplace_back(
          static_cast<int>(index), access);
    }
  }
  std::vector<Lifetime> result;
  for (const auto& [key, accesses] : uses) {
    const RegionId region(key.first);
    const int first = accesses.front().first;
    const int chunk = plan.memory.region(region).persistent()
                          ? schedule.tasks[static_cast<std::size_t>(first)].chunk
                          : -1;
    Lifetime life{region, chunk, first, accesses.back().first, true};
    for (const auto& access : accesses) {
      life.last_sees_all = life.last_sees_all && ordered(schedule, access, accesses.back());
    }
    result.push_back(life);
  }
  return result;
}

}  // namespace terrace::runtime
