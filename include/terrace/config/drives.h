#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "terrace/config/settings.h"
#include "terrace/io/page_store.h"
#include "terrace/plan/plan.h"

// What a plan reserves on the drives that the settings name, and what these have.

namespace terrace::config {

/// How a store is opened.
[[nodiscard]] io::PageStoreOptions store_options(const PlacementSettings& settings);
/// The same for a new store.
[[nodiscard]] io::PageStoreOptions store_options(const PlacementSettings& settings,
                                                 const plan::Plan& plan);

/// The pages of a plan that hold state, and those that a step uses and no commit keeps: an id is
/// the index of its region.
[[nodiscard]] std::vector<io::PageSpec> page_specs(const plan::Plan& plan);
[[nodiscard]] std::vector<io::PageSpec> scratch_specs(const plan::Plan& plan);

/// Bytes that the store of a plan takes of its drives; 0 without one.
[[nodiscard]] std::uint64_t store_bytes(const PlacementSettings& settings, const plan::Plan& plan);

/// Those of them that are scratch, which a store that is opened has yet to be given.
[[nodiscard]] std::uint64_t scratch_bytes(const plan::Plan& plan);

/// What of a run is on the drives of `--swap` before it reserves anything there.
struct OnDrives {
  std::uint64_t freed_bytes = 0;  ///< that it gives back first
  std::uint64_t held_bytes = 0;   ///< that the store has with which it goes on; 0: it makes one
};

/// What the drives of `--swap` give a store beside what it has there.
struct DiskLimit {
  std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();
  std::string advice;  ///< what allows no more, and what to do: the end of a sentence
};

/// What `--disk`, which is for all of a store, and the free space allow; free space counts only
/// where all the folders are there. Errors: io.
[[nodiscard]] DiskLimit disk_limit(const PlacementSettings& settings, const OnDrives& found);

}  // namespace terrace::config
