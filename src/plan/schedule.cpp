#include "terrace/plan/schedule.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

namespace terrace::plan {

std::string_view name_of(Lane lane) {
  constexpr std::array<std::string_view, kLanes> names = {
      "compute", "h2d", "d2h", "collective", "disk-read", "disk-write", "optimizer"};
  return names[static_cast<std::size_t>(lane)];
}

std::string_view name_of(TaskKind kind) {
  constexpr std::array<std::string_view, 18> names = {
      "copy batch",      "fetch parameter", "read parameter",
      "forward",         "recompute",       "head",
      "head loss",       "backward",        "round gradient",
      "store gradient",  "store loss",      "norm",
      "decide",          "read chunk",      "update",
      "store parameter", "write chunk",     "commit"};
  return names[static_cast<std::size_t>(kind)];
}

namespace {

constexpr std::int64_t kNone = -1;

/// What is known to have completed: per in-order lane the position of its latest such task.
struct Clock {
  std::array<std::int64_t, kLanes> known;
  Clock() { known.fill(kNone); }

  void join(const Clock& other) {
    for (int lane = 0; lane < kLanes; ++lane)
      known[lane] = std::max(known[lane], other.known[lane]);
  }
  [[nodiscard]] bool covers(Lane lane, std::int64_t position) const {
    return completes_in_order(lane) && known[static_cast<std::size_t>(lane)] >= position;
  }
};

/// Who last wrote, and who has since read, each byte range of one tier.
class AccessHistory {
 public:
  /// Appends to `conflicts` the positions that an access to [begin, end) conflicts with, and
  /// records the access as the one of `position`.
  void access(std::uint64_t begin, std::uint64_t end, bool write, std::int64_t position,
              std::vector<std::int64_t>& conflicts) {
    if (begin >= end) return;
    split(begin);
    split(end);
    fill_gaps(begin, end);
    for (auto it = segments_.find(begin); it != segments_.end() && it->first < end; ++it) {
      Segment& segment = it->second;
      if (segment.writer != kNone) conflicts.push_back(segment.writer);
      if (write) {
        conflicts.insert(conflicts.end(), segment.readers.begin(), segment.readers.end());
        segment.writer = position;
        segment.readers.clear();
      } else if (segment.readers.empty() || segment.readers.back() != position) {
        segment.readers.push_back(position);
      }
    }
  }

 private:
  struct Segment {
    std::uint64_t end = 0;
    std::int64_t writer = kNone;
    std::vector<std::int64_t> readers;
  };

  /// Makes `at` a border between segments if it lies inside one.
  void split(std::uint64_t at) {
    auto next = segments_.upper_bound(at);
    if (next == segments_.begin()) return;
    auto segment = std::prev(next);
    if (segment->first == at || segment->second.end <= at) return;
    Segment right = segment->second;
    segment->second.end = at;
    segments_.emplace_hint(next, at, std::move(right));
  }

  void fill_gaps(std::uint64_t begin, std::uint64_t end) {
    std::uint64_t at = begin;
    auto it = segments_.lower_bound(begin);
    while (at < end) {
      if (it != segments_.end() && it->first == at) {
        at = it->second.end;
        ++it;
        continue;
      }
      const std::uint64_t gap_end = it == segments_.end() ? end : std::min(end, it->first);
      Segment gap;
      gap.end = gap_end;
      segments_.emplace_hint(it, at, std::move(gap));
      at = gap_end;
    }
  }

  std::map<std::uint64_t, Segment> segments_;
};

/// Runs two steps of the serial order and notes, in the second one, what each task must wait for.
class WaitInference {
 public:
  WaitInference(const Schedule& schedule, const memory::MemoryPlan& regions)
      : schedule_(schedule),
        regions_(regions),
        count_(static_cast<std::int64_t>(schedule.tasks.size())),
        started_(static_cast<std::size_t>(2 * count_)) {}

  /// The waits of the task at `position`, fewest.
  std::vector<std::int64_t> visit(std::int64_t position) {
    const Task& task = task_at(position);
    std::vector<std::int64_t> conflicts;
    for (const Access& access : schedule_.accesses_of(task)) {
      const memory::Region& region = regions_.region(access.region);
      const std::uint64_t begin = region.offset + access.offset;
      history_[static_cast<std::size_t>(region.tier)].access(begin, begin + access.bytes,
                                                             access.write, position, conflicts);
    }
    std::ranges::sort(conflicts, std::greater<>());
    conflicts.erase(std::ranges::unique(conflicts).begin(), conflicts.end());
    std::erase(conflicts, position);

    Clock& clock = started_[static_cast<std::size_t>(position)];
    const auto lane = static_cast<std::size_t>(task.lane);
    if (previous_[lane] != kNone) {
      clock.join(completes_in_order(task.lane)
                     ? completed(previous_[lane])
                     : started_[static_cast<std::size_t>(previous_[lane])]);
    }
    previous_[lane] = position;
    // Latest first: a later task's completion tends to imply the earlier ones'.
    std::vector<std::int64_t> needed;
    for (const std::int64_t other : conflicts) {
      if (clock.covers(task_at(other).lane, other)) continue;
      needed.push_back(other);
      clock.join(completed(other));
    }
    return needed;
  }

 private:
  [[nodiscard]] const Task& task_at(std::int64_t position) const {
    return schedule_.tasks[static_cast<std::size_t>(position % count_)];
  }
  [[nodiscard]] Clock completed(std::int64_t position) const {
    Clock clock = started_[static_cast<std::size_t>(position)];
    const Lane lane = task_at(position).lane;
    if (completes_in_order(lane)) {
      std::int64_t& known = clock.known[static_cast<std::size_t>(lane)];
      known = std::max(known, position);
    }
    return clock;
  }

  const Schedule& schedule_;
  const memory::MemoryPlan& regions_;
  std::int64_t count_;
  std::vector<Clock> started_;  ///< what is known when a task begins
  std::array<AccessHistory, memory::kTiers> history_;
  std::array<std::int64_t, kLanes> previous_ = {kNone, kNone, kNone, kNone, kNone, kNone, kNone};
};

}  // namespace

void infer_waits(Schedule& schedule, const memory::MemoryPlan& regions) {
  const auto count = static_cast<std::int64_t>(schedule.tasks.size());
  WaitInference inference(schedule, regions);
  for (std::int64_t position = 0; position < count; ++position) {
    (void)inference.visit(position);
  }
  schedule.waits.clear();
  for (std::int64_t position = count; position < 2 * count; ++position) {
    Task& task = schedule.tasks[static_cast<std::size_t>(position - count)];
    task.first_wait = static_cast<int>(schedule.waits.size());
    for (const std::int64_t other : inference.visit(position)) {
      schedule.waits.push_back({static_cast<int>(other % count), other < count ? 1 : 0});
    }
    task.wait_count = static_cast<int>(schedule.waits.size()) - task.first_wait;
  }
}

}  // namespace terrace::plan
