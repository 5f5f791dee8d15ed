#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "terrace/model/model.h"
#include "terrace/plan/search.h"
#include "terrace/shard/layout.h"

// The placements that a plan may have.

namespace terrace::plan {

/// A placement to try, and of what as much is kept on a faster tier as fits there.
struct Candidate {
  Placement placement;
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
[[nodiscard]] std::vector<Candidate> candidates(const Policy& policy, const model::Model& model,
                                                const shard::Layout& layout);

/// What the policy asks of a plan with this placement, from which the order of its micro-batches
/// follows.
[[nodiscard]] PlanRequest request_for(const Policy& policy, const Placement& placement);

/// The changes of `policy` that lower `need` of the least plan below that of `refused`, the one
/// that lowers it most first, but for drives, which come before all: at most two.
[[nodiscard]] std::vector<Relief> reliefs(const model::Model& model, const shard::Layout& layout,
                                          const Policy& policy, std::uint64_t Need::*need,
                                          const Need& refused);

}  // namespace terrace::plan
