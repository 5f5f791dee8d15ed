#include "policy.h"

#include <algorithm>

#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::config {
namespace {

using memory::Tier;

/// A schedule holds every micro-batch of a step, so their number is bounded too.
constexpr std::int64_t kAccumulationMax = 4096;

/// All but the placement, and what follows from that.
plan::PlanRequest base_request(const PlanInput& what) {
  const auto& [settings, model, layout, basis] = what;
  const std::int64_t accumulation = settings.batch.accumulation.value_or(1);
  require(accumulation <= kAccumulationMax, ErrorKind::usage,
          "gradient_accumulation_steps is {}, but may be at most {}: raise "
          "--per_device_train_batch_size instead",
          accumulation, kAccumulationMax);
  plan::PlanRequest request;
  request.device_is_ram = basis.device_is_ram;
  request.threads = basis.threads;
  const auto& [first, last] = settings.output.trace_steps;
  if (!settings.output.trace.empty()) request.traced_steps = last - first + 1;
  // All that can be is sharded unless less is asked for.
  request.zero_stage =
      static_cast<int>(settings.ranks.zero_stage.value_or(layout.world_size() > 1 ? 3 : 0));
  request.micro_batch = micro_batch_shape(settings, model.config());
  request.micro_batches = static_cast<int>(accumulation);
  request.recompute = settings.numerics.gradient_checkpointing;
  request.gradient = settings.numerics.gradient_dtype.value_or(model.compute_dtype());
  for (const optim::StateEntry& entry :
       optim::state_entries(settings.optimizer.type, settings.optimizer.state)) {
    request.state.push_back({entry.kind, static_cast<int>(entry.bytes_per_parameter)});
  }
  // fp16, whose loss is scaled, is not computed on the host device.
  request.may_update_before_decision = settings.optimizer.max_grad_norm == 0;
  request.disk_extents = static_cast<int>(settings.placement.disk_extents);
  request.update_reads_parameter = settings.optimizer.state.master == optim::MasterFormat::split;
  if (settings.placement.chunk_elements > 0) {
    request.chunk_elements = static_cast<std::int64_t>(
        round_up(static_cast<std::uint64_t>(settings.placement.chunk_elements), 2048));
  } else {
    // About 24 MiB of state, and for small models enough chunks that their reads, updates and
    // writes can overlap.
    const std::int64_t share = layout.elements() / layout.world_size() / 16;
    request.chunk_elements = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(share), 2048)), 1 << 16,
        1 << 21);
  }
  request.chunk_slots = settings.placement.optimizer.buffer_count > 0
                            ? static_cast<int>(settings.placement.optimizer.buffer_count)
                            : plan::kChunkSlots;
  if (settings.placement.prefetch_units > 0) {
    request.prefetch_units = static_cast<int>(settings.placement.prefetch_units);
  }
  return request;
}

std::optional<plan::MicroBatchOrder> order_of(MicroBatchOrder order) {
  switch (order) {
    case MicroBatchOrder::automatic:
      break;
    case MicroBatchOrder::batch_major:
      return plan::MicroBatchOrder::batch_major;
    case MicroBatchOrder::unit_major:
      return plan::MicroBatchOrder::unit_major;
  }
  return std::nullopt;
}

plan::Pin pin_of(const OffloadSettings& settings) {
  switch (settings.device) {
    case Placement::automatic:
      break;
    case Placement::none:
      return {Tier::device, settings.ratio};
    case Placement::cpu:
      return {Tier::host, settings.ratio};
    case Placement::nvme:
      return {Tier::disk, settings.ratio};
  }
  return {std::nullopt, settings.ratio};
}

}  // namespace

plan::Policy policy_of(const PlanInput& what, const Budgets& budgets) {
  const PlacementSettings& settings = what.settings.placement;
  plan::Policy policy;
  policy.request = base_request(what);
  policy.order = order_of(what.settings.batch.order);
  policy.parameters = pin_of(settings.parameters);
  policy.state = pin_of(settings.optimizer);
  policy.activations = pin_of(settings.activations);
  policy.device_is_bounded = settings.device_memory.has_value();
  policy.has_drives = !settings.swap.empty();
  policy.keeps_chunk_slots = settings.optimizer.buffer_count > 0;
  policy.stored_parameter_bytes = what.basis.store_parameter_bytes;
  policy.budgets = static_cast<const plan::Budgets&>(budgets);
  return policy;
}

}  // namespace terrace::config
