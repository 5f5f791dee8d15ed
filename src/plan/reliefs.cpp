#include <algorithm>
#include <limits>

#include "candidates.h"

namespace terrace::plan {
namespace {

/// What the slowest placement that the policy allows needs, which takes least; boundaries take
/// least where they pass no more slots than there are of them.
std::uint64_t least_need(const model::Model& model, const shard::Layout& layout,
                         const Policy& policy, std::uint64_t Need::*need) {
  const std::vector<Candidate> list = candidates(policy, model, layout);
  const Placement& slowest = list.back().placement;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const Candidate& candidate : list) {
    const Placement& placement = candidate.placement;
    if (placement.parameters != slowest.parameters || placement.state != slowest.state) continue;
    least = std::min(least, Need(draft_plan(model, layout, request_for(policy, placement))).*need);
  }
  return least;
}

/// Makes the change; false where the policy is that way already.
bool apply(Change change, Policy& policy, const shard::Layout& layout) {
  PlanRequest& request = policy.request;
  const auto set = [](auto& member, auto value) {
    const bool is_new = member != value;
    member = value;
    return is_new;
  };
  switch (change) {
    case Change::use_drives:
      return set(policy.has_drives, true);
    case Change::free_state:
      return set(policy.state.tier, std::nullopt);
    case Change::free_parameters:
      return set(policy.parameters.tier, std::nullopt);
    case Change::free_activations:
      return set(policy.activations.tier, std::nullopt);
    case Change::shard_parameters:
      return layout.world_size() > 1 && set(request.zero_stage, 3);
    case Change::one_row:
      return set(request.micro_batch.rows, 1);
    case Change::half_length:
      return set(request.micro_batch.sequence, half_length(request));
    case Change::no_clipping:
      return set(request.may_update_before_decision, true);
    case Change::fewer_chunk_slots:
      return policy.keeps_chunk_slots && request.chunk_slots > kChunkSlots &&
             set(request.chunk_slots, kChunkSlots);
  }
  return false;
}

}  // namespace

std::int64_t half_length(const PlanRequest& request) {
  return std::max<std::int64_t>(1, request.micro_batch.sequence / 2);
}

std::vector<Relief> reliefs(const model::Model& model, const shard::Layout& layout,
                            const Policy& policy, std::uint64_t Need::*need, const Need& refused) {
  using enum Change;
  std::vector<Relief> all;
  for (const Change change :
       {use_drives, free_state, free_parameters, free_activations, shard_parameters, one_row,
        half_length, no_clipping, fewer_chunk_slots}) {
    Policy changed = policy;
    if (!apply(change, changed, layout)) continue;
    all.push_back({change, least_need(model, layout, changed, need)});
  }
  const std::uint64_t now = std::min(least_need(model, layout, policy, need), refused.*need);
  std::erase_if(all, [&](const Relief& relief) { return relief.bytes >= now; });
  // A drive is named whatever it gains: it is what holds any model.
  const bool drive = !all.empty() && all.front().change == use_drives;
  std::ranges::stable_sort(all.begin() + (drive ? 1 : 0), all.end(), {}, &Relief::bytes);
  if (all.size() > 2) all.resize(2);
  return all;
}

}  // namespace terrace::plan
