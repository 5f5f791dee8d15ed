#pragma once

#include <cstdint>

#include "terrace/plan/plan.h"

namespace terrace::plan {

/// The most tasks of a step that a plan is made of. With its accesses, its waits and the pages that
/// it moves a task takes some 800 bytes while a plan is made, so that the largest takes 1.6 GiB,
/// and a choice, which holds up to three of them, thrice that. A trillion parameters on one rank,
/// in chunks of the planner's own size, make 1.4 million.
inline constexpr std::int64_t kTasksMax = std::int64_t{1} << 21;

/// About how many tasks a step has, before any is made.
struct TaskCount {
  std::int64_t of_chunks = 0;
  std::int64_t of_micro_batches = 0;

  [[nodiscard]] std::int64_t all() const { return of_chunks + of_micro_batches; }
};

[[nodiscard]] TaskCount task_count(const model::Model& model, const shard::Layout& layout,
                                   const PlanRequest& request);

/// Refuses what has more tasks than `kTasksMax`. Errors: usage, naming what makes it so many and
/// what to give.
void require_countable(const model::Model& model, const shard::Layout& layout,
                       const PlanRequest& request);

}  // namespace terrace::plan
