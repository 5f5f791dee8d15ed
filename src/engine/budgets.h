#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "terrace/engine/settings.h"
#include "terrace/plan/plan.h"

namespace terrace::engine {

/// What a plan may take.
struct Budgets {
  std::uint64_t process_bytes = 0;  ///< of RAM, the program itself included
  std::string source;               ///< of that: the flag, or the limit it was read from
  std::uint64_t device_bytes = std::numeric_limits<std::uint64_t>::max();
};

/// Share of the free memory that a run takes when no budget is given.
inline constexpr double kDefaultBudgetShare = 0.9;

/// The budgets that are given, else of RAM this share of what the container has left.
[[nodiscard]] Budgets budgets_of(const PlacementSettings& settings,
                                 double share = kDefaultBudgetShare);

/// What a plan takes.
struct Need {
  explicit Need(const plan::Plan& plan);

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

/// Refuses what the machine does not have, whatever the budget allows: for a run, not for the plan
/// of another machine's. Errors: does_not_fit, naming need, budget and what is free.
void require_free_ram(const Need& need, const Budgets& budgets);

}  // namespace terrace::engine
