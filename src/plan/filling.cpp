#include "filling.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "terrace/core/units.h"

namespace terrace::plan {
namespace {

using memory::Tier;

/// Bytes of a region as its slab holds them.
std::uint64_t slab_bytes(const Plan& plan, memory::RegionId region) {
  return round_up(plan.memory.region(region).bytes, memory::MemoryPlan::kAlignmentBytes);
}

/// Bytes of a flat's parameters, which stream so far, as a slab would hold them.
std::uint64_t parameter_bytes(const Plan& plan, int flat) {
  std::uint64_t bytes = 0;
  auto chunk = std::ranges::lower_bound(plan.chunks, flat, {}, &Chunk::flat);
  for (; chunk != plan.chunks.end() && chunk->flat == flat; ++chunk) {
    const auto index = static_cast<std::size_t>(chunk - plan.chunks.begin());
    const memory::RegionId home = plan.parameter[index].region;
    if (plan.memory.region(home).tier != Tier::disk) return slab_bytes(plan, home);  // the flat's
    bytes += plan.memory.region(home).bytes;
  }
  return round_up(bytes, memory::MemoryPlan::kAlignmentBytes);
}

/// Adds to `need` what it means that `bytes` of state are on tier `to` instead of `from`.
void move(Need& need, const Plan& plan, Tier from, Tier to, std::uint64_t bytes) {
  auto in_ram = [&](Tier tier) {
    return tier == Tier::host || (tier == Tier::device && plan.request.device_is_ram);
  };
  if (in_ram(to)) need.process_bytes += bytes;
  if (in_ram(from)) need.process_bytes -= bytes;
  if (to == Tier::device) need.device_bytes += bytes;
}

/// Adds to `need` what a flat's parameters take on their resident tier. Their gradient, where it is
/// used and dropped so far, is kept; where the update reads a parameter of the device, the host
/// has a copy.
void add_flat(Need& need, const Plan& plan, int flat) {
  const Placement& placement = plan.request.placement;
  const std::uint64_t bytes = parameter_bytes(plan, flat);
  move(need, plan, placement.parameters, placement.parameters_resident_tier, bytes);
  if (placement.parameters_resident_tier == Tier::device && plan.request.update_reads_parameter) {
    need.process_bytes += bytes;
  }
  if (plan.updates_early(flat)) {
    need.process_bytes += slab_bytes(plan, plan.gradient[static_cast<std::size_t>(flat)]);
  }
}

/// The plan with the first `count` flats of `order` resident.
Plan with_flats(const Plan& plan, const Filling& filling, const std::vector<int>& order,
                std::size_t count) {
  std::int64_t resident = 0;
  for (std::size_t index = 0; index < count; ++index) {
    resident += filling.layout.flat(order[index]).elements;
  }
  Placement placement = plan.request.placement;
  placement.parameters_resident = share_of(resident, filling.layout.elements());
  return filling.make(placement);
}

/// The largest share of the state that fits on the resident tier, given the plan in which only the
/// first chunk is there. What a plan takes beside the state does not grow with the share.
double largest_state_share(const Plan& plan, const Budgets& budgets) {
  const Placement& placement = plan.request.placement;
  Need need(plan);
  std::int64_t all = 0;
  for (const Chunk& chunk : plan.chunks) all += chunk.range.count;
  std::int64_t resident = plan.chunks.front().range.count;
  for (std::size_t chunk = 1; chunk + 1 < plan.chunks.size(); ++chunk) {
    std::uint64_t bytes = 0;
    for (const Place& place : plan.state[chunk]) bytes += slab_bytes(plan, place.region);
    move(need, plan, placement.state, placement.resident_tier, bytes);
    if (!need.fits(budgets)) break;
    resident += plan.chunks[chunk].range.count;
  }
  return share_of(resident, all);
}

/// How many boundaries more the device would hold, by their sum; no more than are elsewhere.
std::size_t boundaries_in_room(const Plan& plan, const Budgets& budgets) {
  if (plan.boundary_home.empty()) return 0;
  const Need need(plan);
  std::uint64_t free = budgets.device_bytes - need.device_bytes;
  // On the host each takes as much of RAM; on disk none.
  if (plan.request.placement.boundaries == Tier::disk && plan.request.device_is_ram) {
    free = std::min(free, budgets.process_bytes - need.process_bytes);
  }
  const std::uint64_t each = slab_bytes(plan, plan.boundary_home.front());
  return static_cast<std::size_t>(std::min<std::uint64_t>(free / each, plan.boundary_home.size()));
}

}  // namespace

double share_of(std::int64_t part, std::int64_t all) {
  return (static_cast<double>(part) + 0.5) / static_cast<double>(all);
}

void fill_boundaries(Plan& plan, const Filling& filling) {
  const std::size_t all = plan.boundary_home.size();
  std::size_t count = 0;
  std::size_t limit = all;
  std::size_t next = boundaries_in_room(plan, filling.budgets);
  while (next > count) {
    Placement placement = plan.request.placement;
    placement.boundaries_resident = static_cast<double>(next) / static_cast<double>(all);
    Plan filled = filling.make(placement);
    if (!Need(filled).fits(filling.budgets)) {
      limit = next - 1;
      next = count + (next - count) / 2;
      continue;
    }
    plan = std::move(filled);
    count = next;
    // What the slots take may be less by then.
    next = std::min(limit, count + boundaries_in_room(plan, filling.budgets));
  }
}

void fill_parameters(Plan& plan, const Filling& filling) {
  const std::vector<int> order = resident_order(filling.model, filling.layout);
  // The first flat may change what all others take, such as the gradients that are kept.
  std::size_t count = 0;
  std::size_t next = 1;
  while (next > count) {
    Plan filled = with_flats(plan, filling, order, next);
    if (!Need(filled).fits(filling.budgets)) {
      // More than the sum of the flats: chunks that had been updated in place now pass a slot.
      next = count + (next - count) / 2;
      continue;
    }
    plan = std::move(filled);
    count = next;
    Need need(plan);
    for (; next + 1 < order.size(); ++next) {
      add_flat(need, plan, order[next]);
      if (!need.fits(filling.budgets)) break;
    }
  }
}

void fill_state(Plan& plan, const Filling& filling) {
  if (plan.chunks.size() < 2) return;
  std::int64_t all = 0;
  for (const Chunk& chunk : plan.chunks) all += chunk.range.count;
  Placement placement = plan.request.placement;
  placement.state_resident = share_of(plan.chunks.front().range.count, all);
  const Plan begun = filling.make(placement);
  Budgets budgets = filling.budgets;
  if (placement.resident_tier == Tier::device && !begun.request.device_is_ram) {
    // What goes to the device leaves RAM, which may have been too small for all of it.
    budgets.process_bytes = std::numeric_limits<std::uint64_t>::max();
  }
  if (!Need(begun).fits(budgets)) return;
  placement.state_resident = largest_state_share(begun, budgets);
  plan = filling.make(placement);
}

}  // namespace terrace::plan
