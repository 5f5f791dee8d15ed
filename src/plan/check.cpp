#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>
#include <tuple>

#include "terrace/core/units.h"
#include "terrace/plan/schedule.h"

namespace terrace::plan {
namespace {

/// For two steps of a schedule, which tasks have completed before each task begins, as bit sets.
/// Two steps prove any number: what conflicts over a greater distance has, in each step between, an
/// access that conflicts with both, so that order follows by transitivity.
class HappensBefore {
 public:
  explicit HappensBefore(const Schedule& schedule)
      : schedule_(schedule),
        count_(schedule.tasks.size()),
        words_((2 * count_ + 63) / 64),
        bits_(2 * count_ * words_, 0) {
    std::array<std::vector<std::size_t>, kLanes> lanes;  // tasks that may still be under way
    for (std::size_t position = 0; position < 2 * count_; ++position) {
      const Task& task = schedule.tasks[position % count_];
      std::vector<std::size_t>& before = lanes[static_cast<std::size_t>(task.lane)];
      if (!before.empty()) {
        const std::size_t last = before.back();
        inherit(position, last);
        if (is_about_all_pages(schedule.tasks[last % count_].kind)) add(position, last);
      }
      if (completes_in_order(task.lane) || is_about_all_pages(task.kind)) {
        for (const std::size_t other : before) add(position, other);
        before.clear();
      }
      before.push_back(position);
      for (const Wait& wait : schedule.waits_of(task)) {
        const std::size_t back = static_cast<std::size_t>(wait.steps_back) * count_;
        if (back > position / count_ * count_) continue;  // before the first step
        const std::size_t other =
            position / count_ * count_ - back + static_cast<std::size_t>(wait.task);
        inherit(position, other);
        add(position, other);
      }
    }
  }

  /// Whether the task at `first` has completed when the one at `second` begins.
  [[nodiscard]] bool ordered(std::size_t first, std::size_t second) const {
    return (bits_[second * words_ + first / 64] >> (first % 64) & 1U) != 0;
  }

 private:
  void inherit(std::size_t position, std::size_t other) {
    for (std::size_t word = 0; word < words_; ++word) {
      bits_[position * words_ + word] |= bits_[other * words_ + word];
    }
  }
  void add(std::size_t position, std::size_t other) {
    bits_[position * words_ + other / 64] |= std::uint64_t{1} << (other % 64);
  }

  const Schedule& schedule_;
  std::size_t count_;
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

struct Touch {
  memory::Tier tier;
  std::uint64_t begin;
  std::uint64_t end;
  bool write;
  int task;
  memory::RegionId region;
};

std::vector<Touch> touches_by_address(const Schedule& schedule, const memory::MemoryPlan& regions) {
  std::vector<Touch> touches;
  for (std::size_t index = 0; index < schedule.tasks.size(); ++index) {
    for (const Access& access : schedule.accesses_of(schedule.tasks[index])) {
      const memory::Region& region = regions.region(access.region);
      const std::uint64_t begin = region.offset + access.offset;
      touches.push_back({region.tier, begin, begin + access.bytes, access.write,
                         static_cast<int>(index), access.region});
    }
  }
  std::ranges::sort(touches, [](const Touch& a, const Touch& b) {
    return std::tie(a.tier, a.begin) < std::tie(b.tier, b.begin);
  });
  return touches;
}

std::string describe(const Schedule& schedule, int index) {
  const Task& task = schedule.tasks[static_cast<std::size_t>(index)];
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
  const auto count = static_cast<int>(schedule.tasks.size());
  for (int index = 0; index < count; ++index) {
    const Task& task = schedule.tasks[static_cast<std::size_t>(index)];
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

void check_order(const Schedule& schedule, const memory::MemoryPlan& regions,
                 std::vector<std::string>& faults) {
  const HappensBefore before(schedule);
  const std::vector<Touch> touches = touches_by_address(schedule, regions);
  const std::size_t count = schedule.tasks.size();

  auto report = [&](const Touch& first, const Touch& second, bool next_step) {
    faults.push_back(fmt::format(
        "{} and {}{} both touch bytes [{}, {}) of \"{}\" and neither waits for the other",
        describe(schedule, first.task), describe(schedule, second.task),
        next_step ? " of the next step" : "", std::max(first.begin, second.begin),
        std::min(first.end, second.end), regions.region(second.region).purpose));
  };
  for (std::size_t i = 0; i < touches.size(); ++i) {
    for (std::size_t j = i; j < touches.size(); ++j) {
      const Touch& a = touches[i];
      const Touch& b = touches[j];
      if (b.tier != a.tier || b.begin >= a.end) break;
      if (!a.write && !b.write) continue;
      const Touch& first = a.task <= b.task ? a : b;
      const Touch& second = a.task <= b.task ? b : a;
      const auto early = static_cast<std::size_t>(first.task);
      const auto late = static_cast<std::size_t>(second.task);
      if (early != late && !before.ordered(early, late)) report(first, second, false);
      // Each of the two also meets the other one, and itself, in the next step.
      if (!before.ordered(late, early + count)) report(second, first, true);
      if (!before.ordered(early, late + count)) report(first, second, true);
    }
  }
}

/// A region and the tasks, from the first to the last in serial order, that it is leased for.
struct Lease {
  const memory::Region* region = nullptr;
  std::size_t first = 0;
  std::size_t last = 0;
};

/// What a step leases: persistent regions for all of it, others from the first task that touches
/// them to the last. By tier and address.
std::vector<Lease> leases_of(const Schedule& schedule, const memory::MemoryPlan& regions) {
  const std::size_t count = schedule.tasks.size();
  std::vector<Lease> all;
  if (count == 0) return all;
  for (const memory::Region& region : regions.regions()) {
    all.push_back(region.persistent() ? Lease{&region, 0, count - 1} : Lease{&region, count, 0});
  }
  for (std::size_t task = 0; task < count; ++task) {
    for (const Access& access : schedule.accesses_of(schedule.tasks[task])) {
      Lease& lease = all[static_cast<std::size_t>(access.region.value)];
      lease.first = std::min(lease.first, task);
      lease.last = std::max(lease.last, task);
    }
  }
  std::erase_if(
      all, [](const Lease& lease) { return lease.first > lease.last || lease.region->bytes == 0; });
  std::ranges::sort(all, [](const Lease& a, const Lease& b) {
    return std::tie(a.region->tier, a.region->offset) < std::tie(b.region->tier, b.region->offset);
  });
  return all;
}

/// What a tier holds when it holds most, and the task at which it first does.
struct Peak {
  std::uint64_t bytes = 0;
  std::size_t task = 0;
};

std::array<Peak, memory::kTiers> peaks_of(std::span<const Lease> leases, std::size_t tasks) {
  std::array<Peak, memory::kTiers> peaks;
  for (std::size_t tier = 0; tier < peaks.size(); ++tier) {
    std::vector<std::uint64_t> taken(tasks + 1, 0);
    std::vector<std::uint64_t> given_back(tasks + 1, 0);
    for (const Lease& lease : leases) {
      if (static_cast<std::size_t>(lease.region->tier) != tier) continue;
      const std::uint64_t bytes =
          round_up(lease.region->bytes, memory::MemoryPlan::kAlignmentBytes);
      taken[lease.first] += bytes;
      given_back[lease.last + 1] += bytes;
    }
    std::uint64_t now = 0;
    for (std::size_t task = 0; task < tasks; ++task) {
      now = now + taken[task] - given_back[task];
      if (now > peaks[tier].bytes) peaks[tier] = {now, task};
    }
  }
  return peaks;
}

void check_overlaps(const Schedule& schedule, std::span<const Lease> leases,
                    std::vector<std::string>& faults) {
  for (std::size_t i = 0; i < leases.size(); ++i) {
    const memory::Region& a = *leases[i].region;
    for (std::size_t j = i + 1; j < leases.size(); ++j) {
      const memory::Region& b = *leases[j].region;
      if (b.tier != a.tier || b.offset >= a.offset + a.bytes) break;
      const std::size_t later = std::max(leases[i].first, leases[j].first);
      if (later > std::min(leases[i].last, leases[j].last)) continue;
      faults.push_back(fmt::format(
          "\"{}\" and \"{}\" share bytes [{}, {}) of the {} tier, and both are leased at {}",
          a.purpose, b.purpose, b.offset, std::min(a.offset + a.bytes, b.offset + b.bytes),
          name_of(a.tier), describe(schedule, static_cast<int>(later))));
    }
  }
}

void check_memory(const Schedule& schedule, const memory::MemoryPlan& regions,
                  const TierBytes& planned, std::vector<std::string>& faults) {
  const std::vector<Lease> leases = leases_of(schedule, regions);
  check_overlaps(schedule, leases, faults);
  const auto peaks = peaks_of(leases, schedule.tasks.size());
  for (const memory::Tier tier : {memory::Tier::device, memory::Tier::host, memory::Tier::disk}) {
    const auto index = static_cast<std::size_t>(tier);
    if (peaks[index].bytes > planned[index]) {
      faults.push_back(fmt::format(
          "the {} tier has {} bytes leased at once at {}, but {} bytes are planned for it",
          name_of(tier), peaks[index].bytes,
          describe(schedule, static_cast<int>(peaks[index].task)), planned[index]));
      continue;
    }
    // What is leased may fit and yet lie beyond the end.
    for (const memory::Region& region : regions.regions()) {
      if (region.tier != tier || region.offset + region.bytes <= planned[index]) continue;
      faults.push_back(fmt::format(
          "\"{}\" lies at bytes [{}, {}) of the {} tier, but {} bytes are planned for it",
          region.purpose, region.offset, region.offset + region.bytes, name_of(tier),
          planned[index]));
    }
  }
}

}  // namespace

TierBytes peak_bytes(const Schedule& schedule, const memory::MemoryPlan& regions) {
  TierBytes bytes{};
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
