#include "builder.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "task_count.h"
#include "terrace/core/error.h"

namespace terrace::plan {

using memory::RegionId;
using memory::Tier;

Builder::Builder(const model::Model& model, const shard::Layout& layout, const PlanRequest& request)
    : model_(model), layout_(layout), request_(request) {
  require(request.micro_batches >= 1 && request.chunk_slots >= 1 && request.prefetch_units >= 0,
          ErrorKind::usage, "a plan needs at least one micro-batch and one chunk slot");
  require(
      request.chunk_elements > 0 && request.chunk_elements % 2048 == 0, ErrorKind::usage,
      "the chunk has {} elements; it must be a positive multiple of 2048, so that its pages are "
      "whole blocks of the disk in every dtype",
      request.chunk_elements);
  require(
      !shards(1) || shards(3) || request.placement.parameters == Tier::device, ErrorKind::usage,
      "ZeRO stage {} keeps whole parameters on every rank's device; to place them elsewhere use "
      "--zero_stage 3",
      request.zero_stage);
  const Placement& placement = request.placement;
  require(placement.parameters_resident == 0 ||
              placement.parameters_resident_tier < placement.parameters,
          ErrorKind::usage,
          "{:.0f} % of the parameters are to stay on the {} tier, but it is no faster than the "
          "rest's, {}",
          placement.parameters_resident * 100, name_of(placement.parameters_resident_tier),
          name_of(placement.parameters));
  require_countable(model, layout, request);
  for (int unit = 0; unit < unit_count(); ++unit) {
    // Blocks are alike, and measuring one is not for nothing.
    const bool as_before =
        unit > 0 && kind_of(unit) == model::UnitKind::block && kind_of(unit - 1) == kind_of(unit);
    unit_memory_.push_back(as_before ? unit_memory_.back()
                                     : model.memory(unit, request.micro_batch));
  }
  plan_.request = request;
}

Plan Builder::build() && {
  place_parameters();
  cut_chunks();
  // What lies in a store comes before what the batch decides, so that its pages' names do not
  // depend on that.
  add_parameters();
  add_state();
  add_activations();
  if (request_.purpose == Purpose::train) add_gradients();
  if (request_.purpose == Purpose::train) emit_training();
  emit_evaluation();
  plan_.memory.pack();
  return std::move(plan_);
}

std::vector<int> resident_order(const model::Model& model, const shard::Layout& layout) {
  std::vector<int> fetches(layout.flats().size(), 0);
  const int units = static_cast<int>(model.units().size());
  for (int unit = 0; unit < units; ++unit) {
    const bool twice = unit + 1 < units && model.backward_reads_weights(unit);
    for (const int flat : layout.flats_of_unit(unit)) {
      fetches[static_cast<std::size_t>(flat)] += twice ? 2 : 1;
    }
  }
  std::vector<int> order(fetches.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(),
                           [&](int flat) { return fetches[static_cast<std::size_t>(flat)]; });
  return order;
}

void Builder::place_parameters() {
  const Placement& placement = request_.placement;
  plan_.parameter_tier.assign(layout_.flats().size(), placement.parameters);
  auto left = static_cast<std::int64_t>(placement.parameters_resident *
                                        static_cast<double>(layout_.elements()));
  for (const int flat : resident_order(model_, layout_)) {
    left -= layout_.flat(flat).elements;
    if (left < 0) break;
    plan_.parameter_tier[static_cast<std::size_t>(flat)] = placement.parameters_resident_tier;
  }
}

void Builder::add_parameters() {
  memory::MemoryPlan& memory = plan_.memory;
  for (const shard::Flat& flat : layout_.flats()) {
    const Tier tier = parameter_tier(flat.id);
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(kept(flat, shards(3))) * parameter_bytes();
    plan_.flat_parameter.push_back(tier == Tier::disk ? memory::kNoRegion
                                                      : memory.add("parameters", tier, bytes));
    const bool copy =
        request_.update_reads_parameter && tier == Tier::device && gradient_tier_ == Tier::host;
    const std::uint64_t copied =
        static_cast<std::uint64_t>(kept(flat, shards(1))) * parameter_bytes();
    plan_.host_parameter.push_back(copy ? memory.add("parameters (host copy)", Tier::host, copied)
                                        : memory::kNoRegion);
  }
  for (const Chunk& chunk : plan_.chunks) {
    const auto flat = static_cast<std::size_t>(chunk.flat);
    const std::uint64_t bytes = static_cast<std::uint64_t>(chunk.range.count) * parameter_bytes();
    if (parameter_tier(chunk.flat) == Tier::disk) {
      plan_.parameter.push_back({memory.add("parameters", Tier::disk, bytes), 0});
    } else {
      plan_.parameter.push_back(
          {plan_.flat_parameter[flat],
           static_cast<std::uint64_t>(chunk.range.first) * parameter_bytes()});
    }
  }
}

void Builder::add_gradients() {
  const Tier tier = gradient_tier_;
  for (const shard::Flat& flat : layout_.flats()) {
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(kept(flat, shards_gradients())) * size_of(request_.gradient);
    plan_.gradient.push_back(plan_.updates_early(flat.id)
                                 ? add_transient("gradient slots", tier, bytes)
                                 : plan_.memory.add("gradients", tier, bytes));
  }
  accumulators_.resize(static_cast<std::size_t>(unit_count()));
  for (int unit = 0; unit < unit_count(); ++unit) {
    for (const int flat : layout_.flats_of_unit(unit)) {
      accumulators_[static_cast<std::size_t>(unit)].push_back(
          add_transient("gradient sums", Tier::device,
                        static_cast<std::uint64_t>(layout_.flat(flat).elements) * sizeof(float)));
    }
  }
}

void Builder::add_state() {
  memory::MemoryPlan& memory = plan_.memory;
  for (const Chunk& chunk : plan_.chunks) {
    Indexed<Place> places;
    for (const StateElement& element : request_.state) {
      const auto bytes =
          static_cast<std::uint64_t>(chunk.range.count) * static_cast<std::uint64_t>(element.bytes);
      places.push_back({memory.add(std::string(name_of(element.kind)), chunk.tier, bytes), 0});
    }
    plan_.state.push_back(std::move(places));
    const Tier parameter = parameter_tier(chunk.flat);
    const bool staged =
        parameter == Tier::device && chunk.tier != Tier::device && !request_.update_reads_parameter;
    needs_slot_.push_back(chunk.tier == Tier::disk || parameter == Tier::disk || staged);
  }
  std::int64_t largest = 0;
  for (const Chunk& chunk : plan_.chunks) largest = std::max(largest, chunk.range.count);
  plan_.transfer_bytes = whole_blocks(static_cast<std::uint64_t>(largest) * sizeof(float));
  // Each state kind, the parameter, and the FP32 values that are converted from or to them.
  plan_.transfer_pages = static_cast<int>(request_.state.size()) + 2;
  plan_.transfer =
      memory.add("loading and saving", Tier::host,
                 plan_.transfer_bytes * static_cast<std::uint64_t>(plan_.transfer_pages));
  if (plan_.updates_before_decision) decision_ = memory.add("losses", Tier::host, 1);
  const auto passing = std::ranges::count(needs_slot_, true);
  const bool state_passes = std::ranges::any_of(
      plan_.chunks, [](const Chunk& chunk) { return chunk.tier == Tier::disk; });
  for (int index = 0; index < std::min<std::ptrdiff_t>(passing, request_.chunk_slots); ++index) {
    Slot slot;
    for (const StateElement& element : request_.state) {
      const auto bytes =
          static_cast<std::uint64_t>(largest) * static_cast<std::uint64_t>(element.bytes);
      slot.state.push_back(
          memory.add("chunk slots", Tier::host, state_passes ? whole_blocks(bytes) : 0));
    }
    slot.parameter =
        memory.add("chunk slots", Tier::host,
                   whole_blocks(static_cast<std::uint64_t>(largest) * parameter_bytes()));
    slots_.push_back(std::move(slot));
  }
}

void Builder::add_activations() {
  memory::MemoryPlan& memory = plan_.memory;
  const int copies = request_.order == MicroBatchOrder::unit_major ? request_.micro_batches : 1;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t saved_bytes = 0;
  std::uint64_t largest_boundary = 0;
  saved_.resize(static_cast<std::size_t>(unit_count()));
  for (int unit = 0; unit < unit_count(); ++unit) {
    const model::UnitMemory& need = unit_memory_[static_cast<std::size_t>(unit)];
    scratch_bytes =
        std::max({scratch_bytes, need.forward_scratch_bytes, need.backward_scratch_bytes});
    saved_bytes = std::max(saved_bytes, need.saved_bytes);
    largest_boundary = std::max(largest_boundary, need.boundary_bytes);
    for (int copy = 0; copy < copies && !request_.recompute; ++copy) {
      saved_[static_cast<std::size_t>(unit)].push_back(
          memory.add("saved activations", Tier::device, need.saved_bytes));
    }
  }
  add_boundaries(copies);
  if (request_.recompute) {
    const RegionId shared = memory.add("saved activations", Tier::device, saved_bytes);
    for (auto& regions : saved_) regions.assign(static_cast<std::size_t>(copies), shared);
  }
  for (int copy = 0; copy < copies; ++copy) {
    // Where boundaries leave the device, their gradients take the place of the forward's slots.
    d_boundary_.push_back(boundaries_on(Tier::device)
                              ? memory.add("boundary gradient", Tier::device, largest_boundary)
                              : add_transient("boundary gradient", Tier::device, largest_boundary));
  }
  scratch_ = memory.add("scratch", Tier::device, scratch_bytes);
  const auto batch_bytes =
      static_cast<std::uint64_t>(request_.micro_batch.tokens()) * 2 * sizeof(std::int32_t);
  for (int micro_batch = 0; micro_batch < request_.micro_batches; ++micro_batch) {
    device_batch_.push_back(memory.add("batch", Tier::device, batch_bytes));
    plan_.host_batch.push_back(memory.add("batch", Tier::host, batch_bytes));
  }
  const auto loss_bytes = static_cast<std::uint64_t>(request_.micro_batches) * sizeof(double);
  if (request_.purpose == Purpose::generate) {
    const auto bytes = static_cast<std::uint64_t>(model_.config().vocab_size) * sizeof(float);
    device_position_ = memory.add("logits", Tier::device, sizeof(std::int32_t));
    device_logits_ = memory.add("logits", Tier::device, bytes);
    plan_.host_position = memory.add("logits", Tier::host, sizeof(std::int32_t));
    plan_.host_logits = memory.add("logits", Tier::host, bytes);
  }
  device_losses_ = memory.add("losses", Tier::device, loss_bytes);
  plan_.host_losses = memory.add("losses", Tier::host, loss_bytes);
}

std::size_t Builder::copy_of(int micro_batch) const {
  return request_.order == MicroBatchOrder::unit_major ? static_cast<std::size_t>(micro_batch) : 0;
}

RegionId Builder::saved_of(int unit, int micro_batch) const {
  return saved_[static_cast<std::size_t>(unit)][copy_of(micro_batch)];
}

void Builder::keep_two(std::vector<RegionId>& before, std::vector<RegionId>& now) {
  const std::int64_t position = base_ + static_cast<std::int64_t>(schedule_->tasks.size()) - 1;
  for (const auto* regions : {&before, &now}) {
    for (const RegionId region : *regions) {
      if (is_transient(region)) plan_.memory.use(region, position);
    }
  }
  before.swap(now);
  now.clear();
}

RegionId Builder::add_transient(std::string purpose, Tier tier, std::uint64_t bytes) {
  const RegionId region = plan_.memory.add(std::move(purpose), tier, bytes);
  transient_.resize(static_cast<std::size_t>(region.value) + 1, false);
  transient_[static_cast<std::size_t>(region.value)] = true;
  return region;
}

Access Builder::whole(RegionId region, bool write) const {
  return {region, 0, plan_.memory.region(region).bytes, write};
}

Access Builder::part(RegionId region, shard::Range range, std::size_t element_bytes,
                     bool write) const {
  return {region, static_cast<std::uint64_t>(range.first) * element_bytes,
          static_cast<std::uint64_t>(range.count) * element_bytes, write};
}

Task& Builder::emit(TaskKind kind, Lane lane, std::vector<Access> accesses) {
  const std::int64_t position = base_ + static_cast<std::int64_t>(schedule_->tasks.size());
  Task task;
  task.kind = kind;
  task.lane = lane;
  task.first_access = static_cast<int>(schedule_->accesses.size());
  task.access_count = static_cast<int>(accesses.size());
  for (const Access& access : accesses) {
    if (is_transient(access.region)) plan_.memory.use(access.region, position);
  }
  schedule_->accesses.insert(schedule_->accesses.end(), accesses.begin(), accesses.end());
  return schedule_->tasks.emplace_back(task);
}

Plan make_plan(const model::Model& model, const shard::Layout& layout, const PlanRequest& request) {
  Plan plan = draft_plan(model, layout, request);
  complete(plan);
  return plan;
}

Plan draft_plan(const model::Model& model, const shard::Layout& layout,
                const PlanRequest& request) {
  return Builder(model, layout, request).build();
}

void complete(Plan& draft) {
  infer_waits(draft.training, draft.memory);
  infer_waits(draft.evaluation, draft.memory);
}

std::uint64_t Plan::kept_bytes(StateKind kind) const {
  std::uint64_t bytes = 0;
  const auto add = [&](RegionId id) {
    if (id != memory::kNoRegion && memory.region(id).persistent()) bytes += memory.region(id).bytes;
  };
  if (kind == StateKind::gradient) {
    for (const RegionId id : gradient) add(id);
  } else if (kind == StateKind::parameter) {
    for (const RegionId id : flat_parameter) add(id);
    for (const Place& place : parameter) {
      if (memory.region(place.region).tier == Tier::disk) add(place.region);
    }
  }
  for (std::size_t index = 0; index < request.state.size(); ++index) {
    if (request.state[index].kind != kind) continue;
    for (const Indexed<Place>& places : state) add(places[index].region);
  }
  return bytes;
}

}  // namespace terrace::plan
