#pragma once

#include "terrace/config/budgets.h"
#include "terrace/config/planning.h"
#include "terrace/config/settings.h"
#include "terrace/model/model.h"
#include "terrace/plan/search.h"

namespace terrace::config {

/// What a plan is to be made for.
struct PlanInput {
  const Settings& settings;
  const model::Model& model;
  const shard::Layout& layout;
  const PlanBasis& basis;
};

/// What the settings allow a search for a plan, but for the rates and the drives' space.
/// Errors: usage, when there are more micro-batches than a schedule may hold.
[[nodiscard]] plan::Policy policy_of(const PlanInput& what, const Budgets& budgets);

}  // namespace terrace::config
