#include "candidates.h"

#include <algorithm>
#include <optional>

#include "filling.h"

namespace terrace::config {
namespace {

using memory::Tier;

std::optional<Tier> pinned_tier(Placement placement) {
  switch (placement) {
    case Placement::automatic:
      return std::nullopt;
    case Placement::none:
      return Tier::device;
    case Placement::cpu:
      return Tier::host;
    case Placement::nvme:
      return Tier::disk;
  }
  return std::nullopt;
}

/// The parameters' part of a candidate in which they lie on `tier`.
void place_parameters(Candidate& candidate, Tier tier, const PlacementSettings& settings,
                      const PlanBasis& basis, const ParameterSize& size) {
  plan::Placement& placement = candidate.placement;
  placement.parameters = tier;
  if (tier == Tier::device) return;  // of what is not offloaded at all, no share is
  const bool open =
      settings.parameters.device == Placement::automatic && settings.parameters.ratio == 1;
  placement.parameters_resident_tier =
      tier == Tier::disk && settings.device_memory ? Tier::host : Tier::device;
  placement.parameters_resident = 1 - settings.parameters.ratio;
  const bool stored = basis.store_parameter_bytes && tier == Tier::disk;
  candidate.fills_parameters = open && !stored;
  if (!open || !stored) return;
  const auto held = static_cast<std::int64_t>(*basis.store_parameter_bytes / size.element_bytes);
  placement.parameters_resident = share_of(size.elements - held, size.elements);
}

/// Appends the candidate to `list` with its boundaries on the device, then on the host, as far as
/// they may be there.
void add_with_boundaries(Candidate candidate, const PlacementSettings& settings,
                         std::vector<Candidate>& list) {
  const std::optional<Tier> pinned = pinned_tier(settings.activations.device);
  if (pinned.value_or(Tier::device) == Tier::device) list.push_back(candidate);
  // State goes before them: it moves less for each byte that it frees.
  const bool state_may_go = settings.optimizer.device == Placement::automatic &&
                            candidate.placement.state == Tier::device;
  const bool may_leave =
      pinned ? *pinned != Tier::device : settings.device_memory.has_value() && !state_may_go;
  if (!may_leave) return;
  candidate.placement.boundaries = pinned.value_or(Tier::host);
  candidate.placement.boundaries_resident = 1 - settings.activations.ratio;
  candidate.fills_boundaries = !pinned && settings.activations.ratio == 1;
  list.push_back(candidate);
}

/// Appends each of `list` whose boundaries could go no further so far, with them on disk: a step
/// writes them once a micro-batch, but the RAM that they leave may hold state that would be written
/// once a step.
void add_with_boundaries_on_disk(const PlacementSettings& settings, std::vector<Candidate>& list) {
  if (settings.activations.device != Placement::automatic || settings.swap.empty()) return;
  const Tier furthest = std::ranges::any_of(list,
                                            [](const Candidate& candidate) {
                                              return candidate.placement.boundaries == Tier::host;
                                            })
                            ? Tier::host
                            : Tier::device;
  const std::size_t count = list.size();
  for (std::size_t index = 0; index < count; ++index) {
    Candidate candidate = list[index];
    if (candidate.placement.boundaries != furthest) continue;
    candidate.instead_of = index;
    candidate.placement.boundaries = Tier::disk;
    candidate.placement.boundaries_resident = 1 - settings.activations.ratio;
    candidate.fills_boundaries = settings.activations.ratio == 1;
    list.push_back(candidate);
  }
}

}  // namespace

std::vector<Candidate> candidates(const Settings& settings, const PlanBasis& basis,
                                  const ParameterSize& size) {
  const auto state = pinned_tier(settings.placement.optimizer.device);
  const auto parameters = pinned_tier(settings.placement.parameters.device);
  const double ratio = settings.placement.optimizer.ratio;
  const std::int64_t stage = settings.ranks.zero_stage.value_or(0);
  const bool whole_on_device = settings.ranks.ranks > 1 && (stage == 1 || stage == 2);
  // The host device's memory is the host's RAM: nothing is gained by the host tier unless it is
  // asked for, or the device's share is bounded.
  auto may_use = [&](Tier tier, const std::optional<Tier>& pinned) {
    if (pinned) return *pinned == tier;
    return tier == Tier::device ||
           (tier == Tier::host ? settings.placement.device_memory.has_value()
                               : !settings.placement.swap.empty());
  };
  std::vector<Candidate> list;
  for (const Tier parameter_tier : {Tier::device, Tier::host, Tier::disk}) {
    for (const Tier state_tier : {Tier::device, Tier::host, Tier::disk}) {
      if (!may_use(parameter_tier, parameters) || !may_use(state_tier, state)) continue;
      // What is there already is where it is, whatever RAM is free by now.
      if (const auto& stored = basis.store_parameter_bytes) {
        if (!state && state_tier != Tier::disk) continue;
        if (!parameters && (parameter_tier == Tier::disk) != (*stored > 0)) continue;
      }
      if (whole_on_device && !parameters && parameter_tier != Tier::device) continue;
      Candidate candidate;
      place_parameters(candidate, parameter_tier, settings.placement, basis, size);
      candidate.placement.state = state_tier;
      candidate.placement.resident_tier = state_tier == Tier::host ? Tier::device : Tier::host;
      // Of what is not offloaded at all, no share is.
      candidate.placement.state_resident = state_tier == Tier::device ? 0 : 1 - ratio;
      // With both on disk, RAM that holds no further flat's parameters is not worth the commits.
      const bool both_on_disk = parameter_tier == Tier::disk && state_tier == Tier::disk;
      candidate.fills_state = !basis.store_parameter_bytes && !state && ratio == 1 &&
                              state_tier != Tier::device &&
                              !(both_on_disk && candidate.fills_parameters);
      add_with_boundaries(candidate, settings.placement, list);
    }
  }
  add_with_boundaries_on_disk(settings.placement, list);
  return list;
}

}  // namespace terrace::config
