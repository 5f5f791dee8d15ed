#include "terrace/core/numa.h"

#include <hwloc.h>

#include <algorithm>
#include <cstdint>

#include "terrace/core/unique_handle.h"

namespace terrace {
namespace {

struct TopologyTraits {
  using Handle = hwloc_topology_t;
  static constexpr Handle empty() { return nullptr; }
  static void destroy(Handle topology) noexcept { hwloc_topology_destroy(topology); }
};
struct BitmapTraits {
  using Handle = hwloc_bitmap_t;
  static constexpr Handle empty() { return nullptr; }
  static void destroy(Handle bitmap) noexcept { hwloc_bitmap_free(bitmap); }
};
using Bitmap = UniqueHandle<BitmapTraits>;

std::vector<NumaNode> nodes_of(hwloc_topology_t topology) {
  std::vector<NumaNode> nodes;
  const Bitmap taken(hwloc_bitmap_alloc());
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, object)) != nullptr) {
    if (hwloc_bitmap_iszero(object->cpuset) != 0) continue;
    if (hwloc_bitmap_intersects(object->cpuset, taken.get()) != 0) continue;
    hwloc_bitmap_or(taken.get(), taken.get(), object->cpuset);
    NumaNode& node = nodes.emplace_back();
    node.number = static_cast<int>(object->os_index);
    for (int cpu = -1; (cpu = hwloc_bitmap_next(object->cpuset, cpu)) >= 0;) {
      node.cpus.push_back(cpu);
    }
  }
  return nodes;
}

}  // namespace

Topology read_topology() {
  hwloc_topology_t loaded = nullptr;
  if (hwloc_topology_init(&loaded) != 0) return {};
  const UniqueHandle<TopologyTraits> topology(loaded);
  const Bitmap mask(hwloc_bitmap_alloc());
  if (!mask || hwloc_topology_load(loaded) != 0 ||
      hwloc_get_cpubind(loaded, mask.get(), HWLOC_CPUBIND_PROCESS) != 0 ||
      hwloc_topology_restrict(loaded, mask.get(), 0) != 0) {
    return {};
  }
  return {std::max(0, hwloc_get_nbobjs_by_type(loaded, HWLOC_OBJ_CORE)), nodes_of(loaded)};
}

std::vector<NodeThreads> spread_threads(const std::vector<NumaNode>& nodes, int threads) {
  std::int64_t all = 0;
  for (const NumaNode& node : nodes) all += static_cast<std::int64_t>(node.cpus.size());
  std::vector<NodeThreads> result;
  std::int64_t cpus = 0;  // of the nodes so far
  int given = 0;
  for (const NumaNode& node : nodes) {
    cpus += static_cast<std::int64_t>(node.cpus.size());
    const int until = static_cast<int>(threads * cpus / std::max<std::int64_t>(all, 1));
    if (until > given) result.push_back({node, until - given});
    given = until;
  }
  if (result.size() < 2) result.clear();
  return result;
}

}  // namespace terrace
