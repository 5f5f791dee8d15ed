#include "terrace/memory/region.h"

#include <algorithm>
#include <map>
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
  return RegionId(static_cast<int>(regions_.size()) - 1);
}

void MemoryPlan::use(RegionId id, std::int64_t task) {
  Region& region = regions_[static_cast<std::size_t>(id.value)];
  region.first_use = region.first_use < 0 ? task : std::min(region.first_use, task);
  region.last_use = std::max(region.last_use, task);
}

void MemoryPlan::pack() {
  std::fill(std::begin(bytes_), std::end(bytes_), 0);
  for (Region& region : regions_) {
    if (!region.persistent()) continue;
    std::uint64_t& end = bytes_[static_cast<std::size_t>(region.tier)];
    region.offset = end;
    end += round_up(region.bytes, kAlignmentBytes);
  }
  std::copy(std::begin(bytes_), std::end(bytes_), std::begin(persistent_bytes_));
  pack_transients(Tier::device);
  pack_transients(Tier::host);
  pack_transients(Tier::disk);
}

void MemoryPlan::pack_transients(Tier tier) {
  std::vector<Region*> waiting;
  for (Region& region : regions_) {
    if (region.tier == tier && !region.persistent()) waiting.push_back(&region);
  }
  std::ranges::stable_sort(waiting, {}, &Region::first_use);
  std::vector<Region*> live;  // ascending offset; those whose lifetime has not ended
  const std::uint64_t base = persistent_bytes_[static_cast<std::size_t>(tier)];
  std::uint64_t& end = bytes_[static_cast<std::size_t>(tier)];
  for (Region* region : waiting) {
    std::erase_if(live, [&](const Region* other) { return other->last_use < region->first_use; });
    std::uint64_t offset = base;
    auto place = live.begin();
    for (; place != live.end(); ++place) {
      if (offset + region->bytes <= (*place)->offset) break;
      offset = round_up((*place)->offset + (*place)->bytes, kAlignmentBytes);
    }
    region->offset = offset;
    live.insert(place, region);
    end = std::max(end, round_up(offset + region->bytes, kAlignmentBytes));
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
  for (const Tier tier : {Tier::device, Tier::host, Tier::disk}) {
    const auto index = static_cast<std::size_t>(tier);
    const std::int64_t moment = fullest_moment(tier);
    std::uint64_t left = bytes_[index] - persistent_bytes_[index];
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
