#include "terrace/memory/region.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "terrace/core/units.h"

namespace terrace::memory {

std::string_view name_of(Tier tier) {
  switch (tier) {
    case Tier::device:
      return "device";
    case Tier::host:
      return "host";
    case Tier::disk:
      return "disk";
  }
  return "?";
}

RegionId MemoryPlan::add(std::string purpose, Tier tier, std::uint64_t bytes) {
  Region region;
  region.purpose = std::move(purpose);
  region.tier = tier;
  region.bytes = bytes;
  regions_.push_back(std::move(region));
  return RegionId(regions_.count() - 1);
}

void MemoryPlan::use(RegionId id, std::int64_t task) {
  Region& region = regions_[id];
  region.first_use = region.first_use < 0 ? task : std::min(region.first_use, task);
  region.last_use = std::max(region.last_use, task);
}

void MemoryPlan::pack() {
  bytes_ = {};
  for (Region& region : regions_) {
    if (!region.persistent()) continue;
    std::uint64_t& end = bytes_[region.tier];
    region.offset = end;
    end += round_up(region.bytes, kAlignmentBytes);
  }
  persistent_bytes_ = bytes_;
  for (const Tier tier : kAllTiers) pack_transients(tier);
}

namespace {

/// The free parts of a slab that has no end, in whole pages.
class FreeSpace {
 public:
  explicit FreeSpace(std::uint64_t begin) { end_by_begin_[begin] = kNoEnd; }

  /// The lowest place for so many bytes, which are not free from then on.
  std::uint64_t take(std::uint64_t bytes) {
    auto part = end_by_begin_.begin();
    while (part->second - part->first < bytes) ++part;
    const auto [begin, end] = *part;
    end_by_begin_.erase(part);
    if (begin + bytes < end) end_by_begin_[begin + bytes] = end;
    return begin;
  }

  void give_back(std::uint64_t begin, std::uint64_t bytes) {
    std::uint64_t end = begin + bytes;
    auto next = end_by_begin_.upper_bound(begin);
    if (next != end_by_begin_.end() && next->first == end) {
      end = next->second;
      next = end_by_begin_.erase(next);
    }
    if (next != end_by_begin_.begin() && std::prev(next)->second == begin) {
      std::prev(next)->second = end;
    } else {
      end_by_begin_.emplace_hint(next, begin, end);
    }
  }

 private:
  static constexpr std::uint64_t kNoEnd = std::numeric_limits<std::uint64_t>::max();
  std::map<std::uint64_t, std::uint64_t> end_by_begin_;  ///< no two touch
};

}  // namespace

void MemoryPlan::pack_transients(Tier tier) {
  std::vector<Region*> waiting;
  for (Region& region : regions_) {
    if (region.tier == tier && !region.persistent()) waiting.push_back(&region);
  }
  std::ranges::stable_sort(waiting, {}, &Region::first_use);
  const auto ends_later = [](const Region* a, const Region* b) {
    return a->last_use > b->last_use;
  };
  std::priority_queue<Region*, std::vector<Region*>, decltype(ends_later)> live(ends_later);
  const std::uint64_t base = persistent_bytes_[tier];
  FreeSpace free(base);
  std::uint64_t& end = bytes_[tier];
  for (Region* region : waiting) {
    for (; !live.empty() && live.top()->last_use < region->first_use; live.pop()) {
      free.give_back(live.top()->offset, round_up(live.top()->bytes, kAlignmentBytes));
    }
    region->offset = base;
    if (region->bytes == 0) continue;
    const std::uint64_t bytes = round_up(region->bytes, kAlignmentBytes);
    region->offset = free.take(bytes);
    live.push(region);
    end = std::max(end, region->offset + bytes);
  }
}

std::int64_t MemoryPlan::fullest_moment(Tier tier) const {
  std::map<std::int64_t, std::int64_t> changes;  // bytes by position
  for (const Region& region : regions_) {
    if (region.tier != tier || region.persistent()) continue;
    const auto bytes = static_cast<std::int64_t>(round_up(region.bytes, kAlignmentBytes));
    changes[region.first_use] += bytes;
    changes[region.last_use + 1] -= bytes;
  }
  std::int64_t moment = -1;
  std::int64_t most = 0;
  std::int64_t now = 0;
  for (const auto& [position, bytes] : changes) {
    now += bytes;
    if (now > most) std::tie(moment, most) = std::pair(position, now);
  }
  return moment;
}

std::vector<PurposeBytes> MemoryPlan::by_purpose() const {
  std::vector<PurposeBytes> table;
  auto add_to = [&](const std::string& purpose, Tier tier, std::uint64_t bytes, bool persistent) {
    auto row = std::ranges::find_if(table, [&](const PurposeBytes& other) {
      return other.tier == tier && other.purpose == purpose;
    });
    if (row == table.end()) row = table.insert(row, {purpose, tier, 0, 0});
    row->bytes += bytes;
    if (persistent) row->persistent_bytes += bytes;
  };
  for (const Region& region : regions_) {
    if (region.persistent()) {
      add_to(region.purpose, region.tier, round_up(region.bytes, kAlignmentBytes), true);
    }
  }
  for (const Tier tier : kAllTiers) {
    const std::int64_t moment = fullest_moment(tier);
    std::uint64_t left = bytes_[tier] - persistent_bytes_[tier];
    for (const Region& region : regions_) {
      if (region.tier != tier || region.first_use > moment || region.last_use < moment) continue;
      if (region.persistent()) continue;
      const std::uint64_t bytes = round_up(region.bytes, kAlignmentBytes);
      add_to(region.purpose, tier, bytes, false);
      left -= bytes;
    }
    if (left > 0) add_to("between slots", tier, left, false);
  }
  return table;
}

}  // namespace terrace::memory
