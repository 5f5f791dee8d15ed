#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "terrace/core/units.h"
#include "terrace/plan/schedule.h"

namespace terrace::plan {
namespace {

/// For two steps of a schedule, whether a task has completed when another one begins. All lanes
/// begin their tasks in order, so that a number a lane says which tasks have begun when a task
/// begins. And a task is known to have completed once one has begun that cannot before that: one
/// that waits for it, or one behind it on its lane, where that completes in order or one of the two
/// is about all pages; of those on one lane the first is enough.
/// Two steps prove any number: what conflicts over a greater distance has, in each step between, an
/// access that conflicts with both, so that order follows by transitivity.
class HappensBefore {
 public:
  explicit HappensBefore(const Schedule& schedule)
      : count_(schedule.tasks.size()), begun_(2 * count_), witness_(2 * count_) {
    for (Numbers& witness : witness_) witness.values.fill(kNever);
    Numbers on_lane;
    ByLane<std::vector<std::size_t>> lanes;  // tasks that may still be under way
    for (std::size_t position = 0; position < 2 * count_; ++position) {
      const Task& task = schedule.tasks[position % count_];
      const Lane lane = task.lane;
      const std::uint32_t number = ++on_lane[lane];
      std::vector<std::size_t>& before = lanes[lane];
      if (!before.empty()) {
        const std::size_t last = before.back();
        inherit(position, last);
        if (is_about_all_pages(schedule.tasks[last % count_].kind)) witness(last, lane, number);
      }
      if (completes_in_order(task.lane) || is_about_all_pages(task.kind)) {
        for (const std::size_t other : before) witness(other, lane, number);
        before.clear();
      }
      before.push_back(position);
      for (const Wait& wait : schedule.waits_of(task)) {
        const std::size_t back = offset_of(wait.steps_back) * count_;
        if (back > position / count_ * count_) continue;  // before the first step
        const std::size_t other = position / count_ * count_ - back + offset_of(wait.task);
        inherit(position, other);
        witness(other, lane, number);
      }
      begun_[position][lane] = number;
    }
  }

  /// Whether the task at `first` has completed when the one at `second` begins.
  [[nodiscard]] bool ordered(std::size_t first, std::size_t second) const {
    return !std::ranges::equal(witness_[first], begun_[second], std::greater<>());
  }

 private:
  /// By lane, tasks counted from 1.
  using Numbers = ByLane<std::uint32_t>;
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

  void inherit(std::size_t position, std::size_t other) {
    std::ranges::transform(begun_[position], begun_[other], begun_[position].begin(),
                           [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); });
  }
  void witness(std::size_t other, Lane lane, std::uint32_t number) {
    witness_[other][lane] = std::min(witness_[other][lane], number);
  }

  std::size_t count_;
  std::vector<Numbers> begun_;    ///< the last that has begun when a task begins
  std::vector<Numbers> witness_;  ///< the first that cannot begin before a task has completed
};

struct Touch {
  memory::Tier tier;
  std::uint64_t begin;
  std::uint64_t end;
  bool write;
  int task;
  memory::RegionId region;
};

std::vector<Touch> touches_of(const Schedule& schedule, const memory::MemoryPlan& regions) {
  std::vector<Touch> touches;
  for (std::size_t index = 0; index < schedule.tasks.size(); ++index) {
    for (const Access& access : schedule.accesses_of(schedule.tasks[index])) {
      const memory::Region& region = regions.region(access.region);
      const std::uint64_t begin = region.offset + access.offset;
      touches.push_back({region.tier, begin, begin + access.bytes, access.write,
                         static_cast<int>(index), access.region});
    }
  }
  std::erase_if(touches, [](const Touch& touch) { return touch.begin == touch.end; });
  return touches;
}

std::string describe(const Schedule& schedule, int index) {
  const Task& task = schedule.tasks[index];
  std::string text = fmt::format("task {} ({}", index, name_of(task.kind));
  if (task.unit >= 0) text += fmt::format(", unit {}", task.unit);
  if (task.micro_batch >= 0) text += fmt::format(", micro-batch {}", task.micro_batch);
  if (task.flat >= 0) text += fmt::format(", flat {}", task.flat);
  if (task.chunk >= 0) text += fmt::format(", chunk {}", task.chunk);
  return text + ")";
}

std::vector<std::string> check_structure(const Schedule& schedule,
                                         const memory::MemoryPlan& regions) {
  std::vector<std::string> faults;
  const int count = schedule.tasks.count();
  for (int index = 0; index < count; ++index) {
    const Task& task = schedule.tasks[index];
    for (const Wait& wait : schedule.waits_of(task)) {
      const bool earlier = wait.steps_back == 0 ? wait.task < index : wait.steps_back == 1;
      if (wait.task < 0 || wait.task >= count || !earlier) {
        faults.push_back(fmt::format("{} waits for task {} of {} steps before, which never comes",
                                     describe(schedule, index), wait.task, wait.steps_back));
      }
    }
    for (const Access& access : schedule.accesses_of(task)) {
      if (access.offset + access.bytes > regions.region(access.region).bytes) {
        faults.push_back(fmt::format(
            "{} reaches beyond its region \"{}\" of {} bytes", describe(schedule, index),
            regions.region(access.region).purpose, regions.region(access.region).bytes));
      }
    }
  }
  return faults;
}

/// Checks the order of all that touches one range of addresses, and nothing but all of that range.
class RangeCheck {
 public:
  RangeCheck(const Schedule& schedule, const memory::MemoryPlan& regions,
             std::vector<std::string>& faults)
      : schedule_(schedule), regions_(regions), faults_(faults), before_(schedule) {}

  /// `touches` in serial order. Each write must be behind the write before it and behind the reads
  /// since, each read behind the write before it, up to the next step's first write: all others are
  /// ordered through those between.
  template <class Touches>
  void check(const Touches& touches) {
    const Touch* written = nullptr;
    std::size_t written_at = 0;
    std::vector<std::pair<std::size_t, const Touch*>> reads;  // since then, by position
    for (const std::size_t step_begin : {std::size_t{0}, schedule_.tasks.size()}) {
      for (const Touch* touch : touches) {
        const std::size_t position = step_begin + offset_of(touch->task);
        if (written != nullptr) expect_ordered(written_at, *written, position, *touch);
        if (!touch->write) {
          reads.emplace_back(position, touch);
          continue;
        }
        for (const auto& [at, read] : reads) expect_ordered(at, *read, position, *touch);
        reads.clear();
        written = touch;
        written_at = position;
        if (step_begin > 0) return;
      }
      if (written == nullptr) return;
    }
  }

 private:
  void expect_ordered(std::size_t first_at, const Touch& first, std::size_t second_at,
                      const Touch& second) {
    if (first_at == second_at || before_.ordered(first_at, second_at)) return;
    const std::size_t count = schedule_.tasks.size();
    faults_.push_back(fmt::format(
        "{} and {}{} both touch bytes [{}, {}) of \"{}\" and neither waits for the other",
        describe(schedule_, first.task), describe(schedule_, second.task),
        first_at < count && second_at >= count ? " of the next step" : "",
        std::max(first.begin, second.begin), std::min(first.end, second.end),
        regions_.region(second.region).purpose));
  }

  const Schedule& schedule_;
  const memory::MemoryPlan& regions_;
  std::vector<std::string>& faults_;
  HappensBefore before_;
};

void check_order(const Schedule& schedule, const memory::MemoryPlan& regions,
                 std::vector<std::string>& faults) {
  RangeCheck range(schedule, regions, faults);
  const std::vector<Touch> touches = touches_of(schedule, regions);
  struct Border {
    memory::Tier tier;
    std::uint64_t address;
    const Touch* touch;
  };
  std::vector<Border> borders;
  for (const Touch& touch : touches) {
    borders.push_back({touch.tier, touch.begin, &touch});
    borders.push_back({touch.tier, touch.end, &touch});
  }
  const auto place = [](const Border& border) { return std::tie(border.tier, border.address); };
  std::ranges::sort(borders, {}, place);
  std::set<const Touch*> here;  // one behind the other in `touches`, which is in serial order
  for (auto border = borders.begin(); border != borders.end();) {
    const Border& first = *border;
    for (; border != borders.end() && place(*border) == place(first); ++border) {
      if (border->address == border->touch->begin) {
        here.insert(border->touch);
      } else {
        here.erase(border->touch);
      }
    }
    range.check(here);
  }
}

/// A region and the tasks, from the first to the last in serial order, that it is leased for.
struct Lease {
  const memory::Region* region = nullptr;
  int first = 0;
  int last = 0;
};

/// What a step leases: persistent regions for all of it, others from the first task that touches
/// them to the last. By that first one.
std::vector<Lease> leases_of(const Schedule& schedule, const memory::MemoryPlan& regions) {
  const int count = schedule.tasks.count();
  if (count == 0) return {};
  Indexed<Lease, memory::RegionId> all;
  for (const memory::Region& region : regions.regions()) {
    all.push_back(region.persistent() ? Lease{&region, 0, count - 1} : Lease{&region, count, 0});
  }
  for (int task = 0; task < count; ++task) {
    for (const Access& access : schedule.accesses_of(schedule.tasks[task])) {
      Lease& lease = all[access.region];
      lease.first = std::min(lease.first, task);
      lease.last = std::max(lease.last, task);
    }
  }
  std::vector<Lease> leases;
  std::ranges::copy_if(all, std::back_inserter(leases), [](const Lease& lease) {
    return lease.first <= lease.last && lease.region->bytes > 0;
  });
  std::ranges::stable_sort(leases, {}, &Lease::first);
  return leases;
}

/// What a tier holds when it holds most, and the task at which it first does.
struct Peak {
  std::uint64_t bytes = 0;
  int task = 0;
};

memory::ByTier<Peak> peaks_of(std::span<const Lease> leases, std::size_t tasks) {
  memory::ByTier<Peak> peaks;
  for (const memory::Tier tier : memory::kAllTiers) {
    Indexed<std::uint64_t> taken(tasks + 1, 0);
    Indexed<std::uint64_t> given_back(tasks + 1, 0);
    for (const Lease& lease : leases) {
      if (lease.region->tier != tier) continue;
      const std::uint64_t bytes =
          round_up(lease.region->bytes, memory::MemoryPlan::kAlignmentBytes);
      taken[lease.first] += bytes;
      given_back[lease.last + 1] += bytes;
    }
    std::uint64_t now = 0;
    for (int task = 0; task + 1 < taken.count(); ++task) {
      now = now + taken[task] - given_back[task];
      if (now > peaks[tier].bytes) peaks[tier] = {now, task};
    }
  }
  return peaks;
}

void check_overlaps(const Schedule& schedule, std::span<const Lease> leases,
                    std::vector<std::string>& faults) {
  std::vector<const Lease*> ending;
  for (const Lease& lease : leases) ending.push_back(&lease);
  std::ranges::sort(ending, {}, &Lease::last);
  auto next_to_end = ending.begin();
  // No two share a byte: what shares one with those that are here is reported and left out.
  memory::ByTier<std::map<std::uint64_t, const Lease*>> leased;  // by offset
  for (const Lease& lease : leases) {
    for (; (*next_to_end)->last < lease.first; ++next_to_end) {
      auto& ended_on = leased[(*next_to_end)->region->tier];
      const auto ended = ended_on.find((*next_to_end)->region->offset);
      if (ended != ended_on.end() && ended->second == *next_to_end) ended_on.erase(ended);
    }
    const memory::Region& region = *lease.region;
    auto& here = leased[region.tier];
    auto other = here.lower_bound(region.offset);
    if (other != here.begin()) {
      const memory::Region& before = *std::prev(other)->second->region;
      if (before.offset + before.bytes > region.offset) --other;
    }
    bool alone = true;
    for (; other != here.end() && other->first < region.offset + region.bytes; ++other) {
      const memory::Region& taken = *other->second->region;
      alone = false;
      faults.push_back(fmt::format(
          "\"{}\" and \"{}\" share bytes [{}, {}) of the {} tier, and both are leased at {}",
          taken.purpose, region.purpose, std::max(taken.offset, region.offset),
          std::min(taken.offset + taken.bytes, region.offset + region.bytes), name_of(region.tier),
          describe(schedule, lease.first)));
    }
    if (alone) here.emplace(region.offset, &lease);
  }
}

void check_memory(const Schedule& schedule, const memory::MemoryPlan& regions,
                  const TierBytes& planned, std::vector<std::string>& faults) {
  const std::vector<Lease> leases = leases_of(schedule, regions);
  check_overlaps(schedule, leases, faults);
  const auto peaks = peaks_of(leases, schedule.tasks.size());
  for (const memory::Tier tier : memory::kAllTiers) {
    if (peaks[tier].bytes > planned[tier]) {
      faults.push_back(fmt::format(
          "the {} tier has {} bytes leased at once at {}, but {} bytes are planned for it",
          name_of(tier), peaks[tier].bytes, describe(schedule, peaks[tier].task), planned[tier]));
      continue;
    }
    // What is leased may fit and yet lie beyond the end.
    for (const memory::Region& region : regions.regions()) {
      if (region.tier != tier || region.offset + region.bytes <= planned[tier]) continue;
      faults.push_back(fmt::format(
          "\"{}\" lies at bytes [{}, {}) of the {} tier, but {} bytes are planned for it",
          region.purpose, region.offset, region.offset + region.bytes, name_of(tier),
          planned[tier]));
    }
  }
}

}  // namespace

TierBytes peak_bytes(const Schedule& schedule, const memory::MemoryPlan& regions) {
  TierBytes bytes;
  const auto peaks = peaks_of(leases_of(schedule, regions), schedule.tasks.size());
  std::ranges::transform(peaks, bytes.begin(), &Peak::bytes);
  return bytes;
}

std::vector<std::string> check(const Schedule& schedule, const memory::MemoryPlan& regions,
                               const TierBytes& planned) {
  std::vector<std::string> faults = check_structure(schedule, regions);
  if (!faults.empty()) return faults;
  check_order(schedule, regions, faults);
  check_memory(schedule, regions, planned, faults);
  std::ranges::sort(faults);
  faults.erase(std::ranges::unique(faults).begin(), faults.end());
  return faults;
}

std::vector<std::string> check(const Schedule& schedule, const memory::MemoryPlan& regions) {
  return check(schedule, regions,
               {regions.bytes(memory::Tier::device), regions.bytes(memory::Tier::host),
                regions.bytes(memory::Tier::disk)});
}

}  // namespace terrace::plan
