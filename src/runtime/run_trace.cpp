#include "terrace/runtime/run_trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "lifetimes.h"
#include "terrace/core/units.h"

namespace terrace::runtime {
namespace {

using memory::Tier;
using plan::Access;
using plan::Lane;
using plan::Task;
using plan::TaskKind;

/// Who writes each region, in serial order.
class Writers {
 public:
  explicit Writers(const plan::Schedule& schedule)
      : count_(static_cast<int>(schedule.tasks.size())) {
    for (int task = 0; task < count_; ++task) {
      for (const Access& access :
           schedule.accesses_of(schedule.tasks[static_cast<std::size_t>(task)])) {
        if (access.write) writes_[access.region.value].push_back({task, access});
      }
    }
  }

  /// The latest task before `reader`, in the step or else in the one before, that writes any of the
  /// bytes; `from` is -1 if there is none.
  [[nodiscard]] Trace::Flow last_before(int reader, const Access& read) const {
    Trace::Flow flow{-1, reader, 0};
    const auto found = writes_.find(read.region.value);
    if (found == writes_.end()) return flow;
    int latest = -count_;
    for (const auto& [task, write] : found->second) {
      const bool touches = write.offset < read.offset + read.bytes &&
                           read.offset < write.offset + write.bytes && task != reader;
      if (touches) latest = std::max(latest, task < reader ? task : task - count_);
    }
    if (latest == -count_) return flow;
    flow.from = latest < 0 ? latest + count_ : latest;
    flow.steps_back = latest < 0 ? 1 : 0;
    return flow;
  }

 private:
  int count_;
  std::map<int, std::vector<std::pair<int, Access>>> writes_;
};

std::vector<Trace::Flow> flows_of(const plan::Schedule& schedule) {
  const Writers writers(schedule);
  std::set<Trace::Flow> flows;
  for (std::size_t index = 0; index < schedule.tasks.size(); ++index) {
    const Task& task = schedule.tasks[index];
    for (const Access& access : schedule.accesses_of(task)) {
      if (access.write && task.kind != TaskKind::update) continue;  // an update is in place
      const Trace::Flow flow = writers.last_before(static_cast<int>(index), access);
      if (flow.from < 0) continue;
      if (schedule.tasks[static_cast<std::size_t>(flow.from)].lane != task.lane) flows.insert(flow);
    }
  }
  return {flows.begin(), flows.end()};
}

class Counters {
 public:
  explicit Counters(const plan::Plan& plan) : plan_(plan) {}

  void add_to(Trace::Relations& relations) {
    relations_ = &relations;
    add_memory();
    add_disk();
  }

 private:
  int counter(std::string name, std::string series, std::uint64_t start) {
    relations_->counters.push_back(
        {std::move(name), std::move(series), static_cast<std::int64_t>(start)});
    return static_cast<int>(relations_->counters.size()) - 1;
  }
  void hold(int first, int last, int counter, std::int64_t amount) {
    relations_->changes.push_back({first, false, counter, amount});
    relations_->changes.push_back({last, true, counter, -amount});
  }

  void add_memory() {
    int kept[memory::kTiers] = {};
    int in_use[memory::kTiers] = {};
    for (const Tier tier : {Tier::device, Tier::host}) {
      const std::string name = std::string(memory::name_of(tier)) + " bytes";
      kept[static_cast<std::size_t>(tier)] = counter(name, "kept", 0);
      in_use[static_cast<std::size_t>(tier)] = counter(name, "in use", 0);
    }
    auto start_of = [&](int counter) -> std::int64_t& {
      return relations_->counters[static_cast<std::size_t>(counter)].start;
    };
    for (const memory::Region& region : plan_.memory.regions()) {
      if (region.tier == Tier::disk || !region.persistent()) continue;
      start_of(kept[static_cast<std::size_t>(region.tier)]) +=
          static_cast<std::int64_t>(region.bytes);
    }
    std::set<int> slots;
    std::map<int, std::pair<int, int>> chunks;  // first and last task of those that take a slot
    for (const Lifetime& life : lifetimes(plan_, plan_.training)) {
      const memory::Region& region = plan_.memory.region(life.region);
      const auto tier = static_cast<std::size_t>(region.tier);
      const auto bytes = static_cast<std::int64_t>(region.bytes);
      hold(life.first, life.last, in_use[tier], bytes);
      if (region.persistent() && slots.insert(life.region.value).second) {
        start_of(kept[tier]) -= bytes;
      }
      if (life.chunk < 0) continue;
      const auto [chunk, is_new] = chunks.try_emplace(life.chunk, life.first, life.last);
      chunk->second.first = std::min(chunk->second.first, life.first);
      chunk->second.second = std::max(chunk->second.second, life.last);
    }
    if (chunks.empty()) return;
    const auto slots_max = static_cast<std::size_t>(plan_.request.chunk_slots);
    const int free = counter("free chunk slots", "free", std::min(chunks.size(), slots_max));
    for (const auto& [chunk, tasks] : chunks) hold(tasks.first, tasks.second, free, -1);
  }

  void add_disk() {
    if (!plan_.uses_disk()) return;
    const int read = counter("disk bytes under way", "read", 0);
    const int written = counter("disk bytes under way", "written", 0);
    for (std::size_t index = 0; index < plan_.training.tasks.size(); ++index) {
      const Task& task = plan_.training.tasks[index];
      if (task.bytes == 0 || (task.lane != Lane::disk_read && task.lane != Lane::disk_write)) {
        continue;
      }
      const auto number = static_cast<int>(index);
      hold(number, number, task.lane == Lane::disk_read ? read : written,
           static_cast<std::int64_t>(task.bytes));
    }
  }

  const plan::Plan& plan_;
  Trace::Relations* relations_ = nullptr;
};

}  // namespace

Trace::Relations relations_of(const plan::Plan& plan) {
  Trace::Relations relations;
  relations.flows = flows_of(plan.training);
  Counters(plan).add_to(relations);
  return relations;
}

std::unique_ptr<Trace> make_trace(const plan::Plan& plan, StepRange range) {
  std::vector<Trace::LaneRoom> lanes;
  for (int lane = 0; lane < plan::kLanes; ++lane) {
    lanes.push_back({std::string(name_of(static_cast<Lane>(lane)))});
  }
  // A task records one span a step.
  const auto steps = static_cast<std::size_t>(range.last - range.first + 1);
  for (const Task& task : plan.training.tasks) {
    lanes[static_cast<std::size_t>(task.lane)].spans_max += steps;
  }
  return std::make_unique<Trace>(lanes, range, relations_of(plan));
}

}  // namespace terrace::runtime
