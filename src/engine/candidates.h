#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "terrace/engine/planning.h"
#include "terrace/engine/settings.h"
#include "terrace/plan/plan.h"

// The placements that a plan may have.

namespace terrace::engine {

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
  /// Where boundaries would be if they were not on disk to save RAM; only worth a try if they do.
  std::optional<memory::Tier> boundaries_else = {};
};

/// The placements to try, fastest first.
[[nodiscard]] std::vector<Candidate> candidates(const Settings& settings, const PlanBasis& basis,
                                                const ParameterSize& size);

}  // namespace terrace::engine
