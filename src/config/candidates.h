#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "terrace/config/planning.h"
#include "terrace/config/settings.h"
#include "terrace/plan/plan.h"

// The placements that a plan may have.

namespace terrace::config {

/// All parameters.
struct ParameterSize {
  std::int64_t elements = 0;
  std::uint64_t element_bytes = 0;
};

/// A placement to try, and of what as much is kept on a faster tier as fits there.
struct Candidate {
  plan::Placement placement;
  bool fills_boundaries = false;
  bool fills_parameters = false;
  bool fills_state = false;
  /// The earlier one of the list that this one is like but for boundaries, which are on disk to
  /// save RAM: only worth a try if they do.
  std::optional<std::size_t> instead_of = {};

  /// Whether boundaries and parameters fill the same memory, so that it matters which come first.
  [[nodiscard]] bool fills_both() const {
    return fills_boundaries && fills_parameters &&
           placement.parameters_resident_tier == memory::Tier::device;
  }
  [[nodiscard]] bool uses_disk() const {
    using enum memory::Tier;
    return placement.parameters == disk || placement.state == disk || placement.boundaries == disk;
  }
};

/// The placements to try, in an order in which the first one that fits is seldom far from the
/// fastest.
[[nodiscard]] std::vector<Candidate> candidates(const Settings& settings, const PlanBasis& basis,
                                                const ParameterSize& size);

}  // namespace terrace::config
