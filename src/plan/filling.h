#pragma once

#include <cstdint>
#include <functional>

#include "terrace/model/model.h"
#include "terrace/plan/need.h"
#include "terrace/plan/plan.h"

// The largest parts of boundaries, parameters and optimizer's state that fit on a faster tier.

namespace terrace::plan {

/// What a plan is filled up with.
struct Filling {
  const model::Model& model;
  const shard::Layout& layout;
  const Budgets& budgets;
  std::function<Plan(const Placement&)> make;
};

/// The share that is the first `part` elements of `all`, whatever it is rounded to.
[[nodiscard]] double share_of(std::int64_t part, std::int64_t all);

/// Replaces `plan`, which fits and keeps no boundary on the device that may leave it, by the one
/// that keeps most of them there and fits; leaves it as it is where none does.
void fill_boundaries(Plan& plan, const Filling& filling);

/// Replaces `plan`, which fits and keeps no parameter on their resident tier, by the one that keeps
/// most flats there and fits; leaves it as it is where none does.
void fill_parameters(Plan& plan, const Filling& filling);

/// The same for whole chunks of the optimizer's state, at least one of which stays where the rest
/// is. Where the device has memory of its own, what goes there from RAM may be what makes it fit.
void fill_state(Plan& plan, const Filling& filling);

}  // namespace terrace::plan
