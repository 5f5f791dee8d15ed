#include <algorithm>

#include "builder.h"

// The order of a step: see "Note on serial order" in builder.h.

namespace terrace::plan {

using memory::RegionId;
using memory::Tier;

std::vector<Builder::Visit> Builder::training_visits() const {
  std::vector<Visit> visits;
  const int head = unit_count() - 1;
  auto pass_over = [&](int first_micro_batch, int micro_batches) {
    for (int unit = 0; unit < head; ++unit) {
      visits.push_back({Visit::Pass::forward, unit, first_micro_batch, micro_batches});
    }
    visits.push_back({Visit::Pass::head, head, first_micro_batch, micro_batches});
    for (int unit = head - 1; unit >= 0; --unit) {
      visits.push_back({Visit::Pass::backward, unit, first_micro_batch, micro_batches});
    }
  };
  if (request_.order == MicroBatchOrder::unit_major) {
    pass_over(0, request_.micro_batches);
  } else {
    for (int micro_batch = 0; micro_batch < request_.micro_batches; ++micro_batch) {
      pass_over(micro_batch, 1);
    }
  }
  return visits;
}

std::vector<Builder::Visit> Builder::evaluation_visits() const {
  std::vector<Visit> visits;
  for (int unit = 0; unit + 1 < unit_count(); ++unit) {
    visits.push_back({Visit::Pass::forward, unit, 0, 1});
  }
  const bool logits = request_.purpose == Purpose::generate;
  visits.push_back(
      {logits ? Visit::Pass::head_logits : Visit::Pass::head_loss, unit_count() - 1, 0, 1});
  return visits;
}

void Builder::emit_training() {
  schedule_ = &plan_.training;
  base_ = 0;
  for (int micro_batch = 0; micro_batch < request_.micro_batches; ++micro_batch) {
    const auto index = static_cast<std::size_t>(micro_batch);
    Task& task = emit(TaskKind::copy_batch, Lane::compute,
                      {whole(plan_.host_batch[index], false), whole(device_batch_[index], true)});
    task.micro_batch = micro_batch;
    task.bytes = plan_.memory.region(device_batch_[index]).bytes;
  }
  emit_visits(training_visits());
  emit(TaskKind::store_loss, Lane::d2h,
       {whole(plan_.host_losses, true), whole(device_losses_, false)})
      .bytes = plan_.memory.region(device_losses_).bytes;
  emit_decision();
}

void Builder::emit_decision() {
  // Ordered behind the norms of all flats by its lane.
  std::vector<Access> decision = {whole(plan_.host_losses, false)};
  if (plan_.updates_before_decision) {
    decision.push_back(whole(decision_, true));
    emit(TaskKind::decide, Lane::optimizer, std::move(decision));
    std::vector<Access> dropped = {whole(decision_, false)};
    for (std::size_t chunk = 0; chunk < plan_.chunks.size(); ++chunk) {
      if (!plan_.updates_early(plan_.chunks[chunk].flat)) continue;
      for (const Place& place : plan_.state[chunk]) dropped.push_back(whole(place.region, true));
      dropped.push_back(whole(plan_.parameter[chunk].region, true));
    }
    emit(TaskKind::settle, Lane::disk_write, std::move(dropped));
  } else {
    emit(TaskKind::decide, Lane::optimizer, std::move(decision));
  }
  for (const shard::Flat& flat : layout_.flats()) {
    if (plan_.updates_early(flat.id)) continue;
    emit_chunks(flat.id);
    if (shards(1) && !shards(3)) {
      const RegionId home = plan_.flat_parameter[static_cast<std::size_t>(flat.id)];
      emit_gather(flat.id, home, home);
    }
  }
  if (!plan_.commits_every_step) return;
  std::vector<Access> pages;
  for (std::size_t index = 0; index < plan_.memory.regions().size(); ++index) {
    const RegionId region(static_cast<int>(index));
    const bool kept = plan_.memory.region(region).tier == Tier::disk && !is_transient(region);
    if (kept) pages.push_back(whole(region, false));
  }
  emit(TaskKind::commit, Lane::disk_write, std::move(pages));
}

void Builder::emit_evaluation() {
  schedule_ = &plan_.evaluation;
  base_ = static_cast<std::int64_t>(plan_.training.tasks.size());
  auto copy_in = [&](RegionId host, RegionId device) {
    Task& copy =
        emit(TaskKind::copy_batch, Lane::compute, {whole(host, false), whole(device, true)});
    copy.micro_batch = 0;
    copy.bytes = plan_.memory.region(device).bytes;
  };
  auto copy_out = [&](RegionId host, RegionId device) {
    emit(TaskKind::store_loss, Lane::d2h, {whole(host, true), whole(device, false)}).bytes =
        plan_.memory.region(device).bytes;
  };
  copy_in(plan_.host_batch[0], device_batch_[0]);
  if (request_.purpose == Purpose::generate) {
    copy_in(plan_.host_position, device_position_);
    emit_visits(evaluation_visits());
    copy_out(plan_.host_logits, device_logits_);
  } else {
    emit_visits(evaluation_visits());
    copy_out(plan_.host_losses, device_losses_);
  }
}

void Builder::emit_visits(const std::vector<Visit>& visits) {
  fetched_.assign(visits.size(), {});
  reads_before_.clear();
  std::size_t fetched = 0;
  for (std::size_t index = 0; index < visits.size(); ++index) {
    const std::size_t ahead = index + static_cast<std::size_t>(request_.prefetch_units);
    for (; fetched <= std::min(ahead, visits.size() - 1); ++fetched) {
      if (reads_parameters(visits[fetched])) emit_fetch(fetched, visits[fetched].unit);
    }
    const Visit& visit = visits[index];
    const int end = visit.first_micro_batch + visit.micro_batches;
    for (int micro_batch = visit.first_micro_batch; micro_batch < end; ++micro_batch) {
      emit_boundary_fetches(visits, index, micro_batch);
      switch (visit.pass) {
        case Visit::Pass::forward:
          emit_forward(visit, index, micro_batch, TaskKind::forward);
          break;
        case Visit::Pass::head:
        case Visit::Pass::head_loss:
          emit_head(visit, index, micro_batch);
          break;
        case Visit::Pass::head_logits:
          emit_logits(visit, index);
          break;
        case Visit::Pass::backward:
          // The embedding's backward needs nothing that its forward leaves.
          if (request_.recompute && visit.unit > 0) {
            emit_forward(visit, index, micro_batch, TaskKind::recompute);
          }
          emit_backward(visit, index, micro_batch);
          break;
      }
    }
    const bool final = end == request_.micro_batches;
    const bool has_gradients =
        visit.pass == Visit::Pass::head || visit.pass == Visit::Pass::backward;
    if (!final || !has_gradients) continue;
    for (const int flat : layout_.flats_of_unit(visit.unit)) {
      if (layout_.flat(flat).unit != visit.unit) continue;
      emit_gradient(flat);
      if (plan_.updates_early(flat)) emit_chunks(flat);
    }
    keep_two(gradients_before_, gradients_now_);
  }
}

RegionId Builder::emit_read(int flat, int unit, std::uint64_t bytes) {
  const RegionId slot = add_transient("parameter slots", Tier::host, whole_blocks(bytes));
  reads_now_.push_back(slot);
  std::vector<Access> accesses = {whole(slot, true)};
  const auto number = static_cast<std::size_t>(flat);
  for (int chunk = first_chunk_[number]; chunk < first_chunk_[number + 1]; ++chunk) {
    accesses.push_back(whole(plan_.parameter[static_cast<std::size_t>(chunk)].region, false));
  }
  Task& read = emit(TaskKind::read_parameter, Lane::disk_read, std::move(accesses));
  read.flat = flat;
  read.unit = unit;
  read.bytes = bytes;
  return slot;
}

void Builder::emit_fetch(std::size_t visit, int unit) {
  for (const int flat : layout_.flats_of_unit(unit)) {
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(kept(layout_.flat(flat), shards(3))) * parameter_bytes();
    const Tier tier = parameter_tier(flat);
    RegionId slot = tier == Tier::disk ? emit_read(flat, unit, bytes)
                                       : plan_.flat_parameter[static_cast<std::size_t>(flat)];
    if (tier != Tier::device) {
      const RegionId source = slot;
      slot = add_transient("parameter slots", Tier::device, bytes);
      Task& fetch = emit(TaskKind::fetch_parameter, Lane::h2d,
                         {{source, 0, bytes, false}, whole(slot, true)});
      fetch.flat = flat;
      fetch.unit = unit;
      fetch.bytes = bytes;
    }
    if (shards(3)) {
      const RegionId shard = slot;
      slot = add_transient(
          "parameter slots", Tier::device,
          static_cast<std::uint64_t>(layout_.flat(flat).elements) * parameter_bytes());
      emit_gather(flat, shard, slot);
    }
    fetched_[visit].push_back(slot);
  }
  // A unit that reads nothing from disk is none that others' slots are kept for.
  if (!reads_now_.empty()) keep_two(reads_before_, reads_now_);
}

void Builder::append_accumulators(int unit, std::vector<Access>& accesses) const {
  for (const RegionId region : accumulators_[static_cast<std::size_t>(unit)]) {
    accesses.push_back(whole(region, true));
  }
}

void Builder::append_parameters(std::size_t visit, std::vector<Access>& accesses) const {
  for (const RegionId region : fetched_[visit]) accesses.push_back(whole(region, false));
}

void Builder::emit_forward(const Visit& visit, std::size_t index, int micro_batch, TaskKind kind) {
  const auto unit = static_cast<std::size_t>(visit.unit);
  const std::size_t copy = copy_of(micro_batch);
  if (passes(visit.unit, copy)) boundary_[unit][copy] = add_boundary_slot(visit.unit);
  std::vector<Access> accesses = {
      whole(device_batch_[static_cast<std::size_t>(micro_batch)], false), whole(scratch_, true),
      whole(saved_of(visit.unit, micro_batch), true), whole(boundary_[unit][copy], true)};
  if (visit.unit > 0) accesses.push_back(whole(boundary_[unit - 1][copy], false));
  append_parameters(index, accesses);
  Task& task = emit(kind, Lane::compute, std::move(accesses));
  task.unit = visit.unit;
  task.micro_batch = micro_batch;
  task.flops = model_.forward_flops(visit.unit, request_.micro_batch);
  if (kind == TaskKind::forward) emit_store_boundary(visit.unit + 1, micro_batch);
}

void Builder::emit_head(const Visit& visit, std::size_t index, int micro_batch) {
  const std::size_t copy = copy_of(micro_batch);
  const bool training = visit.pass == Visit::Pass::head;
  std::vector<Access> accesses = {
      whole(device_batch_[static_cast<std::size_t>(micro_batch)], false), whole(scratch_, true),
      part(device_losses_, {micro_batch, 1}, sizeof(double), true)};
  if (training) accesses.push_back(whole(d_boundary_[copy], true));
  accesses.push_back(whole(boundary_[static_cast<std::size_t>(visit.unit) - 1][copy], false));
  if (training) append_accumulators(visit.unit, accesses);
  append_parameters(index, accesses);
  Task& task =
      emit(training ? TaskKind::head : TaskKind::head_loss, Lane::compute, std::move(accesses));
  task.unit = visit.unit;
  task.micro_batch = micro_batch;
  task.flops = (training ? 3 : 1) * model_.forward_flops(visit.unit, request_.micro_batch);
}

void Builder::emit_logits(const Visit& visit, std::size_t index) {
  std::vector<Access> accesses = {
      whole(device_batch_[0], false), whole(scratch_, true), whole(device_position_, false),
      whole(device_logits_, true),
      whole(boundary_[static_cast<std::size_t>(visit.unit) - 1][0], false)};
  append_parameters(index, accesses);
  Task& task = emit(TaskKind::head_logits, Lane::compute, std::move(accesses));
  task.unit = visit.unit;
  task.micro_batch = 0;
}

void Builder::emit_backward(const Visit& visit, std::size_t index, int micro_batch) {
  const auto unit = static_cast<std::size_t>(visit.unit);
  const std::size_t copy = copy_of(micro_batch);
  std::vector<Access> accesses = {
      whole(device_batch_[static_cast<std::size_t>(micro_batch)], false), whole(scratch_, true),
      whole(saved_of(visit.unit, micro_batch), true), whole(d_boundary_[copy], true)};
  if (visit.unit > 0) accesses.push_back(whole(boundary_[unit - 1][copy], false));
  append_accumulators(visit.unit, accesses);
  if (reads_parameters(visit)) append_parameters(index, accesses);
  Task& task = emit(TaskKind::backward, Lane::compute, std::move(accesses));
  task.unit = visit.unit;
  task.micro_batch = micro_batch;
  task.flops = 2 * model_.forward_flops(visit.unit, request_.micro_batch);
}

void Builder::emit_gradient(int flat) {
  const RegionId gradient = plan_.gradient[static_cast<std::size_t>(flat)];
  const memory::Region target = plan_.memory.region(gradient);
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(layout_.flat(flat).elements) * size_of(request_.gradient);
  const RegionId rounded = target.tier == Tier::device && !shards_gradients()
                               ? gradient
                               : add_transient("gradient slots", Tier::device, bytes);
  std::vector<Access> accesses = {whole(rounded, true)};
  for (int unit = 0; unit < unit_count(); ++unit) {
    const auto flats = layout_.flats_of_unit(unit);
    for (std::size_t index = 0; index < flats.size(); ++index) {
      if (flats[index] == flat) {
        // Written too: the sums of a tied weight's users are added up in the first one.
        accesses.push_back(whole(accumulators_[static_cast<std::size_t>(unit)][index], true));
      }
    }
  }
  Task& round = emit(TaskKind::round_gradient, Lane::compute, std::move(accesses));
  round.flat = flat;
  round.bytes = bytes;
  const RegionId reduced = layout_.world_size() > 1 ? emit_reduce(flat, rounded) : rounded;
  gradients_now_.insert(gradients_now_.end(), {rounded, reduced, gradient});
  if (reduced != gradient) {
    Task& store =
        emit(TaskKind::store_gradient, Lane::d2h, {whole(gradient, true), whole(reduced, false)});
    store.flat = flat;
    store.bytes = target.bytes;
  }
  Task& norm = emit(TaskKind::norm, Lane::optimizer, {whole(gradient, false)});
  norm.flat = flat;
  norm.bytes = target.bytes;
}

}  // namespace terrace::plan
