#include <algorithm>

#include "builder.h"
#include "terrace/core/error.h"

// What a chunk's state goes through: see `Chunk` in plan.h.

namespace terrace::plan {

using memory::RegionId;
using memory::Tier;

void Builder::cut_chunks() {
  std::int64_t all = 0;
  for (const shard::Flat& flat : layout_.flats()) all += kept(flat, shards(1));
  const auto resident =
      static_cast<std::int64_t>(request_.placement.state_resident * static_cast<double>(all));
  std::int64_t before = 0;
  for (const shard::Flat& flat : layout_.flats()) {
    first_chunk_.push_back(static_cast<int>(plan_.chunks.size()));
    const std::int64_t elements = kept(flat, shards(1));
    for (std::int64_t first = 0; first < elements; first += request_.chunk_elements) {
      const std::int64_t count = std::min(request_.chunk_elements, elements - first);
      before += count;
      const Tier tier =
          before <= resident ? request_.placement.resident_tier : request_.placement.state;
      plan_.chunks.push_back({flat.id, {first, count}, tier});
    }
  }
  first_chunk_.push_back(static_cast<int>(plan_.chunks.size()));
  const auto all_on = [&](Tier tier) {
    return std::ranges::all_of(plan_.chunks,
                               [&](const Chunk& chunk) { return chunk.tier == tier; });
  };
  gradient_tier_ = all_on(Tier::device) ? Tier::device : Tier::host;
  const bool state_on_disk = all_on(Tier::disk);
  const auto parameters_on_disk = std::ranges::count(plan_.parameter_tier, Tier::disk);
  const bool all_on_disk = parameters_on_disk == std::ssize(plan_.parameter_tier);
  plan_.commits_every_step = request_.purpose == Purpose::train && request_.disk_extents == 2 &&
                             state_on_disk && (all_on_disk || !request_.update_reads_parameter);
  plan_.updates_before_decision =
      request_.may_update_before_decision && plan_.commits_every_step && parameters_on_disk > 0;
}

void Builder::emit_chunks(int flat) {
  const auto number = static_cast<std::size_t>(flat);
  for (int chunk = first_chunk_[number]; chunk < first_chunk_[number + 1]; ++chunk) {
    emit_chunk(chunk);
  }
}

void Builder::emit_chunk(int number) {
  const auto index = static_cast<std::size_t>(number);
  const Slot* slot = needs_slot_[index] ? &slots_[next_slot_++ % slots_.size()] : nullptr;
  std::vector<PageMove> read;
  std::vector<PageMove> written;
  std::vector<Access> accesses;  // of the update: states, parameter, gradient
  std::uint64_t update_bytes = 0;
  for (std::size_t kind = 0; kind < request_.state.size(); ++kind) {
    const RegionId home = plan_.state[index][kind].region;
    Access state = whole(home, true);
    if (plan_.chunks[index].tier == Tier::disk) {
      require(slot != nullptr, ErrorKind::internal, "a chunk on disk has no slot");
      state.region = slot->state[kind];
      read.push_back({home, state.region});
      written.push_back({home, state.region});
    }
    update_bytes += 2 * state.bytes;
    accesses.push_back(state);
  }
  const Access parameter = updated_parameter(number, slot);
  update_bytes += (request_.update_reads_parameter ? 2 : 1) * parameter.bytes;
  accesses.push_back(parameter);
  const Chunk& chunk = plan_.chunks[index];
  const Tier parameter_tier = this->parameter_tier(chunk.flat);
  if (parameter_tier == Tier::disk) {
    const RegionId page = plan_.parameter[index].region;
    if (request_.update_reads_parameter) read.push_back({page, parameter.region});
    written.push_back({page, parameter.region});
  }
  const auto flat = static_cast<std::size_t>(chunk.flat);
  accesses.push_back(part(plan_.gradient[flat], chunk.range, size_of(request_.gradient), false));
  update_bytes += accesses.back().bytes;

  emit_moves(TaskKind::read_chunk, number, read);
  Task& update = emit(TaskKind::update, Lane::optimizer, std::move(accesses));
  label(update, number, update_bytes);
  const RegionId home = plan_.flat_parameter[flat];
  if (parameter_tier == Tier::device && parameter.region != home) {
    Access source = parameter;
    source.write = false;
    Task& store = emit(TaskKind::store_parameter, Lane::h2d,
                       {part(home, chunk.range, parameter_bytes(), true), source});
    label(store, number, parameter.bytes);
  }
  emit_moves(TaskKind::write_chunk, number, written);
}

Access Builder::updated_parameter(int number, const Slot* slot) const {
  const Chunk& chunk = plan_.chunks[static_cast<std::size_t>(number)];
  const auto flat = static_cast<std::size_t>(chunk.flat);
  if (plan_.host_parameter[flat] != memory::kNoRegion) {
    return part(plan_.host_parameter[flat], chunk.range, parameter_bytes(), true);
  }
  if (slot != nullptr && parameter_tier(chunk.flat) != Tier::host) {
    return part(slot->parameter, {0, chunk.range.count}, parameter_bytes(), true);
  }
  return part(plan_.flat_parameter[flat], chunk.range, parameter_bytes(), true);
}

void Builder::emit_moves(TaskKind kind, int chunk, const std::vector<PageMove>& moves) {
  if (moves.empty()) return;
  const bool reads = kind == TaskKind::read_chunk;
  std::vector<Access> pages;
  std::vector<Access> slots;
  std::uint64_t bytes = 0;
  for (const PageMove& move : moves) {
    pages.push_back(whole(move.page, !reads));
    slots.push_back({move.slot, 0, whole_blocks(pages.back().bytes), reads});
    bytes += pages.back().bytes;
  }
  std::vector<Access>& accesses = reads ? slots : pages;  // what is written comes first
  const std::vector<Access>& others = reads ? pages : slots;
  accesses.insert(accesses.end(), others.begin(), others.end());
  label(emit(kind, reads ? Lane::disk_read : Lane::disk_write, std::move(accesses)), chunk, bytes);
}

void Builder::label(Task& task, int chunk, std::uint64_t bytes) const {
  task.chunk = chunk;
  task.flat = plan_.chunks[static_cast<std::size_t>(chunk)].flat;
  task.bytes = bytes;
}

}  // namespace terrace::plan
