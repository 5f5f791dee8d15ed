#pragma once

#include "terrace/config/planning.h"
#include "terrace/config/settings.h"
#include "terrace/model/model.h"
#include "terrace/plan/plan.h"

namespace terrace::config {

/// Chunks in flight, and where RAM is left for them. Four keep disks and optimizer at work; with
/// eight none of them waits for one that another lane is late with.
inline constexpr int kChunkSlots = 4;
inline constexpr int kChunkSlotsMax = 8;

/// What a plan was to be made for.
struct PlanInput {
  const Settings& settings;
  const model::Model& model;
  const shard::Layout& layout;
  const PlanBasis& basis;
};

/// What the settings ask of a plan with this placement: the order of its micro-batches follows from
/// that. Errors: usage, when there are more micro-batches than a schedule may hold.
[[nodiscard]] plan::PlanRequest request_for(const PlanInput& what,
                                            const plan::Placement& placement);

}  // namespace terrace::config
