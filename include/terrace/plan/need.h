#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "terrace/core/trace.h"
#include "terrace/plan/plan.h"

// What a plan takes and moves, and what it may take.

namespace terrace::plan {

/// What a process takes of RAM beside the regions of its plan: a name for it, and an upper bound.
struct ProcessBytes {
  std::string purpose;
  std::uint64_t bytes = 0;
};
/// With the host tier, and the device tier where that is RAM, they sum to what the run claims.
[[nodiscard]] std::vector<ProcessBytes> process_rows(const Plan& plan);

/// What a plan may take.
struct Budgets {
  std::uint64_t process_bytes = 0;  ///< of RAM, the program itself included
  std::uint64_t device_bytes = std::numeric_limits<std::uint64_t>::max();
};

/// What a plan takes.
struct Need {
  explicit Need(const Plan& plan);

  [[nodiscard]] bool fits(const Budgets& budgets) const {
    return process_bytes <= budgets.process_bytes && device_bytes <= budgets.device_bytes;
  }

  /// What it is short of, of the device's memory and of RAM. Less of the former is nearer, whatever
  /// the latter: a slower tier can be asked for more, by budget or drive.
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> excess(const Budgets& budgets) const {
    return {device_bytes - std::min(device_bytes, budgets.device_bytes),
            process_bytes - std::min(process_bytes, budgets.process_bytes)};
  }

  std::uint64_t process_bytes;  ///< of RAM: `PlanRequest::device_is_ram`
  std::uint64_t device_bytes;
};

/// The first of the steps, as many as a viewer opens: at least one.
[[nodiscard]] StepRange traceable(const Plan& plan, StepRange steps);

/// Bytes that a step moves on a lane.
[[nodiscard]] std::uint64_t bytes_per_step(const Plan& plan, Lane lane);

/// The share of them that boundaries have: what a larger micro-batch has more of.
[[nodiscard]] double boundary_share(const Plan& plan, Lane lane);

}  // namespace terrace::plan
