#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "terrace/core/id.h"
#include "terrace/core/indexed.h"

namespace terrace::memory {

/// Where bytes lie: device memory (HBM, or the host device's), pinned host RAM, or disk.
enum class Tier : std::uint8_t { device, host, disk };
inline constexpr std::array kAllTiers = {Tier::device, Tier::host, Tier::disk};
inline constexpr int kTiers = static_cast<int>(kAllTiers.size());
template <class T>
using ByTier = EnumArray<Tier, T, kTiers>;
[[nodiscard]] std::string_view name_of(Tier tier);

/// Index of a region in its `MemoryPlan`.
using RegionId = Id<struct RegionTag, int>;
inline constexpr RegionId kNoRegion{-1};

/// A named range of one tier. On `device` and `host` it is an offset into the tier's one slab, on
/// `disk` a page of the store, or of its scratch where it is transient.
struct Region {
  std::string purpose;  ///< what people read in the memory table: "master", "block inputs"
  Tier tier = Tier::device;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  ///< set by `pack`
  /// The tasks, by position in the serial order, during which its bytes mean something; a region
  /// that is never given a lifetime holds state for ever. Regions of disjoint lifetimes may share
  /// memory.
  std::int64_t first_use = -1;
  std::int64_t last_use = -1;
  [[nodiscard]] bool persistent() const { return first_use < 0; }
};

/// Bytes of one purpose on one tier.
struct PurposeBytes {
  std::string purpose;
  Tier tier = Tier::device;
  std::uint64_t bytes = 0;
  std::uint64_t persistent_bytes = 0;  ///< of these
};

/// Every reservation of a run, made before anything is allocated: persistent regions side by side,
/// transient ones packed by lifetime behind them.
class MemoryPlan {
 public:
  /// Offsets are multiples of this: a page, which direct I/O and registration with drivers ask for.
  static constexpr std::uint64_t kAlignmentBytes = 4096;

  RegionId add(std::string purpose, Tier tier, std::uint64_t bytes);
  /// Extends the lifetime of `region` to the task at position `task`; makes it transient.
  void use(RegionId region, std::int64_t task);
  /// Sets all offsets. First-fit in order of first use: transients of one purpose that follow each
  /// other share memory, up to what overlaps in time.
  void pack();

  [[nodiscard]] const Region& region(RegionId id) const { return regions_[id]; }
  [[nodiscard]] std::span<const Region> regions() const { return regions_; }
  /// The size of a tier's slab (disk: the sum of the pages), after `pack`.
  [[nodiscard]] std::uint64_t bytes(Tier tier) const { return bytes_[tier]; }
  /// What of it holds state for ever.
  [[nodiscard]] std::uint64_t persistent_bytes(Tier tier) const { return persistent_bytes_[tier]; }
  /// Bytes by purpose, which sum to `bytes`: of each tier the persistent ones, then the transient
  /// ones at the moment when most are in use, then what their packing leaves free at that moment
  /// ("between slots"). In order of first appearance.
  [[nodiscard]] std::vector<PurposeBytes> by_purpose() const;

 private:
  void pack_transients(Tier tier);
  /// The position at which the transient regions of `tier` take most, or -1.
  [[nodiscard]] std::int64_t fullest_moment(Tier tier) const;

  Indexed<Region, RegionId> regions_;
  ByTier<std::uint64_t> bytes_;
  ByTier<std::uint64_t> persistent_bytes_;
};

}  // namespace terrace::memory
