#pragma once

#include <vector>

#include "terrace/plan/plan.h"

namespace terrace::runtime {

/// Memory of device or host that is in use for a part of a step only: a transient region, a chunk's
/// part of a slot through which chunks pass, or a boundary's home on the host, from its store to
/// its fetch.
struct Lifetime {
  memory::RegionId region;
  int chunk = -1;  ///< -1: not a chunk's
  int first = 0;   ///< the tasks, by number, that use it first and last in serial order
  int last = 0;
  bool last_sees_all = false;  ///< the last one is ordered behind all others that use it
};

/// All such memory of one of the plan's schedules, by region and first use.
[[nodiscard]] std::vector<Lifetime> lifetimes(const plan::Plan& plan,
                                              const plan::Schedule& schedule);

}  // namespace terrace::runtime
