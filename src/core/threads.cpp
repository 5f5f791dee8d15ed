#include <fmt/format.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cmath>

#include "terrace/core/container.h"
#include "terrace/core/workers.h"

namespace terrace {
namespace {

int threads_in_mask() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return 1;
  return std::max(1, CPU_COUNT(&mask));
}

/// Physical cores with at least one hardware thread in the affinity mask; 0 when unknown.
int cores_in_mask() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return 0;
  int cores = 0;
  if (hwloc_topology_load(topology) == 0) {
    hwloc_bitmap_t mask = hwloc_bitmap_alloc();
    if (mask != nullptr && hwloc_get_cpubind(topology, mask, HWLOC_CPUBIND_PROCESS) == 0 &&
        hwloc_topology_restrict(topology, mask, 0) == 0) {
      cores = std::max(0, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE));
    }
    hwloc_bitmap_free(mask);
  }
  hwloc_topology_destroy(topology);
  return cores;
}

}  // namespace

ThreadCount choose_threads(int requested) {
  const int mask = threads_in_mask();
  if (requested > 0) {
    if (requested <= mask) return {requested, "as asked"};
    return {mask, fmt::format("{} asked, the affinity mask has {}", requested, mask)};
  }
  ThreadCount choice{mask, "the affinity mask"};
  const int cores = cores_in_mask();
  if (cores > 0 && cores < choice.threads) choice = {cores, "physical cores"};
  const ContainerLimits limits = read_container_limits();
  if (limits.cpus) {
    const int quota = std::max(1, static_cast<int>(std::ceil(limits.cpus->value)));
    if (quota < choice.threads) {
      choice = {quota, fmt::format("CPU quota in {}", limits.cpus->source)};
    }
  }
  return choice;
}

}  // namespace terrace
