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
  constexpr std::array<std::string_view, 26> names = {
      "copy batch",      "store boundary", "write boundary",  "read boundary",  "fetch boundary",
      "fetch parameter", "read parameter", "forward",         "recompute",      "head",
      "head loss",       "head logits",    "backward",        "round gradient", "gather flat",
      "reduce flat",     "store gradient", "store loss",      "norm",           "decide",
      "read chunk",      "update",         "store parameter", "write chunk",    "settle",
      "commit"};
  return names[static_cast<std::size_t>(kind)];
}

namespace {

constexpr std::int64_t kNone = -1;

/// Tasks of an out-of-order lane that are known to have completed beyond the first that is not. A
/// longer list is cut: a wait may then be one too many, and none is missing.
constexpr std::size_t kAheadMax = 64;

/// Where a task of a run of several steps stands on its lane, counted from 0.
struct LanePlace {
  Lane lane = Lane::compute;
  std::int64_t number = 0;
};

/// What is known to have completed: of each lane the first so many tasks, and of an out-of-order
/// lane some more.
class Clock {
 public:
  void join(const Clock& other) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      done_[lane] = std::max(done_[lane], other.done_[lane]);
      for (const std::int64_t number : other.ahead_[lane]) insert(lane, number);
      settle(lane);
    }
  }
  void complete(const LanePlace& place) {
    const auto lane = static_cast<std::size_t>(place.lane);
    if (completes_in_order(place.lane)) {
      done_[lane] = std::max(done_[lane], place.number + 1);
    } else {
      insert(lane, place.number);
      settle(lane);
    }
  }
  /// All before `place` on its lane has completed.
  void complete_before(const LanePlace& place) {
    const auto lane = static_cast<std::size_t>(place.lane);
    done_[lane] = std::max(done_[lane], place.number);
    settle(lane);
  }
  [[nodiscard]] bool covers(const LanePlace& place) const {
    const auto lane = static_cast<std::size_t>(place.lane);
    return place.number < done_[lane] || std::ranges::binary_search(ahead_[lane], place.number);
  }

 private:
  void insert(std::size_t lane, std::int64_t number) {
    std::vector<std::int64_t>& ahead = ahead_[lane];
    const auto at = std::ranges::lower_bound(ahead, number);
    if (number >= done_[lane] && (at == ahead.end() || *at != number)) ahead.insert(at, number);
  }
  /// Moves what follows the known beginning without a gap into it.
  void settle(std::size_t lane) {
    std::vector<std::int64_t>& ahead = ahead_[lane];
    auto next = ahead.begin();
    for (; next != ahead.end() && *next <= done_[lane]; ++next) {
      done_[lane] = std::max(done_[lane], *next + 1);
    }
    ahead.erase(ahead.begin(), next);
    if (ahead.size() > kAheadMax) {
      ahead.erase(ahead.begin(), ahead.end() - static_cast<std::ptrdiff_t>(kAheadMax));
    }
  }

  std::array<std::int64_t, kLanes> done_{};
  std::array<std::vector<std::int64_t>, kLanes> ahead_;  ///< ascending; not below `done_`
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
        started_(static_cast<std::size_t>(2 * count_)) {
    previous_.fill(kNone);
    for (const Task& task : schedule.tasks) {
      number_.push_back(on_lane_[static_cast<std::size_t>(task.lane)]++);
    }
  }

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
    std::int64_t& before = previous_[static_cast<std::size_t>(task.lane)];
    if (before != kNone) {
      clock.join(started_[static_cast<std::size_t>(before)]);
      if (completes_in_order(task.lane) || is_about_all_pages(task_at(before).kind)) {
        clock.complete(place_of(before));
      }
    }
    if (is_about_all_pages(task.kind)) clock.complete_before(place_of(position));
    before = position;
    // Latest first: a later task's completion may imply the earlier ones', never the reverse.
    std::vector<std::int64_t> needed;
    for (const std::int64_t other : conflicts) {
      if (clock.covers(place_of(other))) continue;
      needed.push_back(other);
      clock.join(started_[static_cast<std::size_t>(other)]);
      clock.complete(place_of(other));
    }
    return needed;
  }

 private:
  [[nodiscard]] const Task& task_at(std::int64_t position) const {
    return schedule_.tasks[static_cast<std::size_t>(position % count_)];
  }
  [[nodiscard]] LanePlace place_of(std::int64_t position) const {
    const Lane lane = task_at(position).lane;
    const std::int64_t a_step = on_lane_[static_cast<std::size_t>(lane)];
    return {lane,
            position / count_ * a_step + number_[static_cast<std::size_t>(position % count_)]};
  }

  const Schedule& schedule_;
  const memory::MemoryPlan& regions_;
  std::int64_t count_;
  std::vector<Clock> started_;                  ///< what is known when a task begins
  std::array<std::int64_t, kLanes> on_lane_{};  ///< tasks a step
  std::vector<std::int64_t> number_;            ///< of each task on its lane
  std::array<AccessHistory, memory::kTiers> history_;
  std::array<std::int64_t, kLanes> previous_;  ///< position of a lane's latest task
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
