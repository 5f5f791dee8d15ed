#pragma once

#include <string>

#include "terrace/config/settings.h"
#include "terrace/plan/need.h"

namespace terrace::config {

/// What a plan may take, and what says so.
struct Budgets : plan::Budgets {
  std::string source;  ///< of `process_bytes`: the flag, or the limit it was read from
};

/// Share of the free memory that a run takes when no budget is given.
inline constexpr double kDefaultBudgetShare = 0.9;

/// The budgets that are given, else of RAM this share of what the container has left.
[[nodiscard]] Budgets budgets_of(const PlacementSettings& settings,
                                 double share = kDefaultBudgetShare);

/// Refuses what the machine does not have, whatever the budget allows: for a run, not for the plan
/// of another machine's. Errors: does_not_fit, naming need, budget and what is free.
void require_free_ram(const plan::Need& need, const Budgets& budgets);

}  // namespace terrace::config
