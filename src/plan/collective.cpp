#include "builder.h"

// What ranks exchange: see "Note on sharding" in plan.h.

namespace terrace::plan {

using memory::RegionId;
using memory::Tier;

void Builder::emit_gather(int flat, RegionId shard, RegionId target) {
  std::vector<Access> accesses;
  if (shard != target) accesses.push_back(whole(shard, false));
  accesses.push_back(whole(target, true));
  Task& task = emit(TaskKind::gather_flat, Lane::collective, std::move(accesses));
  task.flat = flat;
  task.bytes = exchanged(plan_.memory.region(target).bytes);
}

RegionId Builder::emit_reduce(int flat, RegionId rounded) {
  const std::uint64_t bytes = exchanged(plan_.memory.region(rounded).bytes);
  const RegionId gradient = plan_.gradient[static_cast<std::size_t>(flat)];
  const memory::Region home = plan_.memory.region(gradient);
  RegionId reduced = rounded;
  std::vector<Access> accesses;
  if (shards_gradients()) {
    reduced = home.tier == Tier::device ? gradient
                                        : add_transient("gradient slots", Tier::device, home.bytes);
    accesses.push_back(whole(reduced, true));
  }
  accesses.push_back(whole(rounded, true));
  Task& task = emit(TaskKind::reduce_flat, Lane::collective, std::move(accesses));
  task.flat = flat;
  // The sum of a shard comes in parts from all others; the whole sum is then gathered too.
  task.bytes = shards_gradients() ? bytes : 2 * bytes;
  return reduced;
}

}  // namespace terrace::plan
