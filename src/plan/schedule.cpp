#include "terrace/plan/schedule.h"

#include <algorithm>
#include <array>
#include <functional>

#include "range_map.h"

namespace terrace::plan {

std::string_view name_of(Lane lane) {
  constexpr ByLane<std::string_view> names = {"compute",   "h2d",        "d2h",      "collective",
                                              "disk-read", "disk-write", "optimizer"};
  return names[lane];
}

std::string_view name_of(TaskKind kind) {
  constexpr std::array<std::string_view, 26> names = {
      "copy batch",      "store boundary", "write boundary",  "read boundary",  "fetch boundary",
      "fetch parameter", "read parameter", "forward",         "recompute",      "head",
      "head loss",       "head logits",    "backward",        "round gradient", "gather flat",
      "reduce flat",     "store gradient", "store loss",      "norm",           "decide",
      "read chunk",      "update",         "store parameter", "write chunk",    "settle",
      "commit"};
  return names[offset_of(kind)];
}

namespace {

constexpr std::int64_t kNone = -1;

/// Runs of tasks of a disk lane that are known to have completed beyond the first that is not. A
/// longer list is cut: a wait may then be one too many, and none is missing.
constexpr std::size_t kAheadMax = 64;

/// Where a task of a run of several steps stands on its lane, counted from 0.
struct LanePlace {
  Lane lane = Lane::compute;
  std::int64_t number = 0;
};

/// What is known to have completed: of each lane the first so many tasks, and of a disk lane some
/// more.
class Clock {
 public:
  void join(const Clock& other) {
    for (const Lane lane : kAllLanes) {
      done_[lane] = std::max(done_[lane], other.done_[lane]);
    }
    for (const Lane lane : {Lane::disk_read, Lane::disk_write}) {
      for (const Run& run : other.ahead(lane)) insert(lane, run);
      settle(lane);
    }
  }
  void complete(const LanePlace& place) {
    if (completes_in_order(place.lane)) return complete_before({place.lane, place.number + 1});
    insert(place.lane, {place.number, place.number + 1});
    settle(place.lane);
  }
  /// All before `place` on its lane has completed.
  void complete_before(const LanePlace& place) {
    std::int64_t& done = done_[place.lane];
    done = std::max(done, place.number);
    if (!completes_in_order(place.lane)) settle(place.lane);
  }
  [[nodiscard]] bool covers(const LanePlace& place) const {
    if (place.number < done_[place.lane]) return true;
    if (completes_in_order(place.lane)) return false;
    const auto run = std::ranges::upper_bound(ahead(place.lane), place.number, {}, &Run::end);
    return run != ahead(place.lane).end() && run->begin <= place.number;
  }

 private:
  /// Tasks [begin, end) of a lane.
  struct Run {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  [[nodiscard]] std::vector<Run>& ahead(Lane lane) {
    return lane == Lane::disk_read ? reads_ahead_ : writes_ahead_;
  }
  [[nodiscard]] const std::vector<Run>& ahead(Lane lane) const {
    return lane == Lane::disk_read ? reads_ahead_ : writes_ahead_;
  }
  void insert(Lane lane, Run run) {
    if (run.end <= done_[lane]) return;
    std::vector<Run>& runs = ahead(lane);
    const auto first = std::ranges::lower_bound(runs, run.begin, {}, &Run::end);
    auto last = first;
    for (; last != runs.end() && last->begin <= run.end; ++last) {
      run = {std::min(run.begin, last->begin), std::max(run.end, last->end)};
    }
    if (first == last) {
      runs.insert(first, run);
    } else {
      *first = run;
      runs.erase(first + 1, last);
    }
  }
  /// Moves what follows the known beginning without a gap into it.
  void settle(Lane lane) {
    std::vector<Run>& runs = ahead(lane);
    std::int64_t& done = done_[lane];
    auto next = runs.begin();
    for (; next != runs.end() && next->begin <= done; ++next) done = std::max(done, next->end);
    runs.erase(runs.begin(), next);
    if (runs.size() > kAheadMax) {
      runs.erase(runs.begin(), runs.end() - static_cast<std::ptrdiff_t>(kAheadMax));
    }
  }

  ByLane<std::int64_t> done_;
  // Ascending, with gaps between, each beginning beyond `done_`.
  std::vector<Run> reads_ahead_;
  std::vector<Run> writes_ahead_;
};

/// Who last wrote, and who has since read, each byte of one tier.
class AccessHistory {
 public:
  /// One task's access to a range.
  struct Use {
    std::int64_t position = 0;
    Lane lane = Lane::compute;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  /// Appends to `conflicts` the positions whose completion, together with what is known when the
  /// lane's task before begins, is what a read must wait for, and records it.
  void read(const Use& use, std::vector<std::int64_t>& conflicts) {
    RangeMap& readers = readers_[use.lane];
    if (completes_in_order(use.lane)) {
      // What a task before on the lane has read since, that one has waited for; and of those tasks
      // the latest stands for all.
      readers.for_each(use.begin, use.end, [&](auto begin, auto end, std::int64_t reader) {
        if (reader == RangeMap::kNone) append_writers(begin, end, conflicts);
      });
      readers.assign(use.begin, use.end, use.position);
      return;
    }
    append_writers(use.begin, use.end, conflicts);
    const std::size_t first = disk_readers_.size();
    std::vector<std::uint64_t> ends;
    readers.for_each(use.begin, use.end, [&](auto, auto end, std::int64_t before) {
      disk_readers_.push_back({use.position, before});
      ends.push_back(end);
    });
    std::uint64_t begin = use.begin;
    for (std::size_t part = 0; part < ends.size(); ++part) {
      readers.assign(begin, ends[part], static_cast<std::int64_t>(first + part));
      begin = ends[part];
    }
  }

  /// The same for a write.
  void write(const Use& use, std::vector<std::int64_t>& conflicts) {
    append_writers(use.begin, use.end, conflicts);
    writers_.assign(use.begin, use.end, use.position);
    for (const Lane lane : kAllLanes) {
      const bool in_order = completes_in_order(lane);
      RangeMap& readers = readers_[lane];
      readers.for_each(use.begin, use.end, [&](auto, auto, std::int64_t reader) {
        if (in_order && reader != RangeMap::kNone) conflicts.push_back(reader);
        while (!in_order && reader != RangeMap::kNone) {
          const DiskReader& on_disk_lane = disk_readers_[reader];
          conflicts.push_back(on_disk_lane.position);
          reader = on_disk_lane.before;
        }
      });
      readers.erase(use.begin, use.end);
    }
  }

 private:
  /// A reader on a lane that completes in any order, and the one before it, or none.
  struct DiskReader {
    std::int64_t position = 0;
    std::int64_t before = RangeMap::kNone;
  };

  void append_writers(std::uint64_t begin, std::uint64_t end,
                      std::vector<std::int64_t>& conflicts) const {
    writers_.for_each(begin, end, [&](auto, auto, std::int64_t writer) {
      if (writer != RangeMap::kNone) conflicts.push_back(writer);
    });
  }

  RangeMap writers_;          ///< positions
  ByLane<RangeMap> readers_;  ///< positions, of disk lanes indices of `disk_readers_`
  Indexed<DiskReader> disk_readers_;
};

/// Runs two steps of the serial order and notes, in the second one, what each task must wait for.
class WaitInference {
 public:
  WaitInference(const Schedule& schedule, const memory::MemoryPlan& regions)
      : schedule_(schedule),
        regions_(regions),
        count_(schedule.tasks.count()),
        started_(2 * schedule.tasks.size()) {
    previous_.values.fill(kNone);
    for (const Task& task : schedule.tasks) {
      number_.push_back(on_lane_[task.lane]++);
    }
  }

  /// The waits of the task at `position`, fewest.
  std::vector<std::int64_t> visit(std::int64_t position) {
    const Task& task = task_at(position);
    std::vector<std::int64_t> conflicts;
    for (const Access& access : schedule_.accesses_of(task)) {
      const memory::Region& region = regions_.region(access.region);
      const std::uint64_t begin = region.offset + access.offset;
      const AccessHistory::Use use{position, task.lane, begin, begin + access.bytes};
      AccessHistory& history = history_[region.tier];
      access.write ? history.write(use, conflicts) : history.read(use, conflicts);
    }
    std::ranges::sort(conflicts, std::greater<>());
    conflicts.erase(std::ranges::unique(conflicts).begin(), conflicts.end());
    std::erase(conflicts, position);

    Clock& clock = started_[position];
    std::int64_t& before = previous_[task.lane];
    if (before != kNone) {
      clock.join(started_[before]);
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
      clock.join(started_[other]);
      clock.complete(place_of(other));
    }
    return needed;
  }

 private:
  [[nodiscard]] const Task& task_at(std::int64_t position) const {
    return schedule_.tasks[position % count_];
  }
  [[nodiscard]] LanePlace place_of(std::int64_t position) const {
    const Lane lane = task_at(position).lane;
    return {lane, position / count_ * on_lane_[lane] + number_[position % count_]};
  }

  const Schedule& schedule_;
  const memory::MemoryPlan& regions_;
  std::int64_t count_;
  Indexed<Clock> started_;        ///< what is known when a task begins
  ByLane<std::int64_t> on_lane_;  ///< tasks a step
  Indexed<std::int64_t> number_;  ///< of each task on its lane
  memory::ByTier<AccessHistory> history_;
  ByLane<std::int64_t> previous_;  ///< position of a lane's latest task
};

}  // namespace

void infer_waits(Schedule& schedule, const memory::MemoryPlan& regions) {
  const std::int64_t count = schedule.tasks.count();
  WaitInference inference(schedule, regions);
  for (std::int64_t position = 0; position < count; ++position) {
    (void)inference.visit(position);
  }
  schedule.waits.clear();
  for (std::int64_t position = count; position < 2 * count; ++position) {
    Task& task = schedule.tasks[position - count];
    task.first_wait = schedule.waits.count();
    for (const std::int64_t other : inference.visit(position)) {
      schedule.waits.push_back({static_cast<int>(other % count), other < count ? 1 : 0});
    }
    task.wait_count = schedule.waits.count() - task.first_wait;
  }
}

}  // namespace terrace::plan
