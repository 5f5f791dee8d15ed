#include "candidates.h"

#include <algorithm>
#include <optional>

#include "filling.h"

namespace terrace::plan {
namespace {

using memory::Tier;

/// The parameters' part of a candidate in which they lie on `tier`.
void place_parameters(Candidate& candidate, Tier tier, const Policy& policy,
                      const model::Model& model, const shard::Layout& layout) {
  Placement& placement = candidate.placement;
  placement.parameters = tier;
  if (tier == Tier::device) return;  // of what is not offloaded at all, no share is
  const bool open = !policy.parameters.tier && policy.parameters.share == 1;
  placement.parameters_resident_tier =
      tier == Tier::disk && policy.device_is_bounded ? Tier::host : Tier::device;
  placement.parameters_resident = 1 - policy.parameters.share;
  const bool stored = policy.stored_parameter_bytes && tier == Tier::disk;
  candidate.fills_parameters = open && !stored;
  if (!open || !stored) return;
  const auto held =
      static_cast<std::int64_t>(*policy.stored_parameter_bytes / size_of(model.compute_dtype()));
  placement.parameters_resident = share_of(layout.elements() - held, layout.elements());
}

/// Appends the candidate to `list` with its boundaries on the device, then on the host, as far as
/// they may be there.
void add_with_boundaries(Candidate candidate, const Policy& policy, std::vector<Candidate>& list) {
  const Pin& pin = policy.activations;
  if (pin.tier.value_or(Tier::device) == Tier::device) list.push_back(candidate);
  // State goes before them: it moves less for each byte that it frees.
  const bool state_may_go = !policy.state.tier && candidate.placement.state == Tier::device;
  const bool may_leave =
      pin.tier ? *pin.tier != Tier::device : policy.device_is_bounded && !state_may_go;
  if (!may_leave) return;
  candidate.placement.boundaries = pin.tier.value_or(Tier::host);
  candidate.placement.boundaries_resident = 1 - pin.share;
  candidate.fills_boundaries = !pin.tier && pin.share == 1;
  list.push_back(candidate);
}

/// Appends each of `list` whose boundaries could go no further so far, with them on disk: a step
/// writes them once a micro-batch, but the RAM that they leave may hold state that would be written
/// once a step.
void add_with_boundaries_on_disk(const Policy& policy, std::vector<Candidate>& list) {
  if (policy.activations.tier || !policy.has_drives) return;
  const bool on_host = std::ranges::any_of(list, [](const Candidate& candidate) {
    return candidate.placement.boundaries == Tier::host;
  });
  const Tier furthest = on_host ? Tier::host : Tier::device;
  const std::size_t count = list.size();
  for (std::size_t index = 0; index < count; ++index) {
    Candidate candidate = list[index];
    if (candidate.placement.boundaries != furthest) continue;
    candidate.instead_of = index;
    candidate.placement.boundaries = Tier::disk;
    candidate.placement.boundaries_resident = 1 - policy.activations.share;
    candidate.fills_boundaries = policy.activations.share == 1;
    list.push_back(candidate);
  }
}

}  // namespace

std::vector<Candidate> candidates(const Policy& policy, const model::Model& model,
                                  const shard::Layout& layout) {
  const auto& state = policy.state.tier;
  const auto& parameters = policy.parameters.tier;
  const int stage = policy.request.zero_stage;
  const bool whole_on_device = layout.world_size() > 1 && (stage == 1 || stage == 2);
  // The host device's memory is the host's RAM: nothing is gained by the host tier unless it is
  // asked for, or the device's share is bounded.
  auto may_use = [&](Tier tier, const std::optional<Tier>& pinned) {
    if (pinned) return *pinned == tier;
    return tier == Tier::device ||
           (tier == Tier::host ? policy.device_is_bounded : policy.has_drives);
  };
  std::vector<Candidate> list;
  for (const Tier parameter_tier : {Tier::device, Tier::host, Tier::disk}) {
    for (const Tier state_tier : {Tier::device, Tier::host, Tier::disk}) {
      if (!may_use(parameter_tier, parameters) || !may_use(state_tier, state)) continue;
      // What is there already is where it is, whatever RAM is free by now.
      if (const auto& stored = policy.stored_parameter_bytes) {
        if (!state && state_tier != Tier::disk) continue;
        if (!parameters && (parameter_tier == Tier::disk) != (*stored > 0)) continue;
      }
      if (whole_on_device && !parameters && parameter_tier != Tier::device) continue;
      Candidate candidate;
      place_parameters(candidate, parameter_tier, policy, model, layout);
      candidate.placement.state = state_tier;
      candidate.placement.resident_tier = state_tier == Tier::host ? Tier::device : Tier::host;
      // Of what is not offloaded at all, no share is.
      candidate.placement.state_resident = state_tier == Tier::device ? 0 : 1 - policy.state.share;
      // With both on disk, RAM that holds no further flat's parameters is not worth the commits.
      const bool both_on_disk = parameter_tier == Tier::disk && state_tier == Tier::disk;
      candidate.fills_state = !policy.stored_parameter_bytes && !state && policy.state.share == 1 &&
                              state_tier != Tier::device &&
                              !(both_on_disk && candidate.fills_parameters);
      add_with_boundaries(candidate, policy, list);
    }
  }
  add_with_boundaries_on_disk(policy, list);
  return list;
}

PlanRequest request_for(const Policy& policy, const Placement& placement) {
  PlanRequest request = policy.request;
  request.placement = placement;
  const bool streamed = placement.parameters != Tier::device;
  request.order =
      policy.order.value_or(streamed && request.micro_batches > 1 ? MicroBatchOrder::unit_major
                                                                  : MicroBatchOrder::batch_major);
  return request;
}

}  // namespace terrace::plan
