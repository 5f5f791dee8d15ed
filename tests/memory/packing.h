#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "terrace/core/units.h"
#include "terrace/memory/region.h"

namespace terrace::memory {

/// Whether two regions hold something at the same time.
inline bool live_together(const Region& a, const Region& b) {
  if (a.persistent() || b.persistent()) return true;
  return a.first_use <= b.last_use && b.first_use <= a.last_use;
}

/// Everything a packed plan promises, found by comparing each region with each other one.
inline void expect_packed(const MemoryPlan& plan) {
  const std::span<const Region> regions = plan.regions();
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const Region& a = regions[i];
    EXPECT_EQ(a.offset % MemoryPlan::kAlignmentBytes, 0U) << a.purpose;
    EXPECT_LE(a.offset + a.bytes, plan.bytes(a.tier)) << a.purpose;
    for (std::size_t j = i + 1; j < regions.size(); ++j) {
      const Region& b = regions[j];
      if (a.tier != b.tier || !live_together(a, b) || a.bytes == 0 || b.bytes == 0) continue;
      const bool apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
      EXPECT_TRUE(apart) << a.purpose << " [" << a.offset << ", " << a.offset + a.bytes << ") and "
                         << b.purpose << " [" << b.offset << ", " << b.offset + b.bytes << ")";
    }
  }
  std::uint64_t sums[kTiers] = {};
  for (const PurposeBytes& row : plan.by_purpose()) {
    sums[static_cast<std::size_t>(row.tier)] += row.bytes;
  }
  for (const Tier tier : {Tier::device, Tier::host, Tier::disk}) {
    EXPECT_EQ(sums[static_cast<std::size_t>(tier)], plan.bytes(tier)) << name_of(tier);
  }
}

/// The most bytes (whole pages) that are live at once: no packing can do with less.
inline std::uint64_t peak_bytes(const MemoryPlan& plan, Tier tier) {
  std::uint64_t peak = 0;
  for (const Region& at : plan.regions()) {
    if (at.persistent()) continue;
    std::uint64_t live = 0;
    for (const Region& region : plan.regions()) {
      const bool counts = region.tier == tier &&
                          (region.persistent() ||
                           (region.first_use <= at.first_use && at.first_use <= region.last_use));
      if (counts) live += round_up(region.bytes, MemoryPlan::kAlignmentBytes);
    }
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace terrace::memory
