#include "task_count.h"

#include <algorithm>

#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::plan {

using memory::Tier;

namespace {

/// Tasks that move a page from where it lies to the device: h2d, and before it disk-read.
std::int64_t moves_from(Tier tier) { return static_cast<std::int64_t>(tier); }
static_assert(static_cast<int>(Tier::device) == 0 && static_cast<int>(Tier::host) == 1 &&
              static_cast<int>(Tier::disk) == 2);

}  // namespace

TaskCount task_count(const model::Model& model, const shard::Layout& layout,
                     const PlanRequest& request) {
  const Placement& placement = request.placement;
  TaskCount count;
  const bool sharded = layout.world_size() > 1 && request.zero_stage >= 1;
  std::int64_t chunks = 0;
  for (const shard::Flat& flat : layout.flats()) {
    const std::int64_t elements = sharded ? layout.shard(flat.id, 0).count : flat.elements;
    chunks += (elements - 1) / request.chunk_elements + 1;
  }
  // An update, what moves its pages from and to disk, and what brings the parameter to the device.
  const bool state_on_disk = placement.state == Tier::disk && placement.state_resident < 1;
  const bool writes = state_on_disk || placement.parameters == Tier::disk;
  const bool reads = state_on_disk || (writes && request.update_reads_parameter);
  const bool stores = placement.parameters == Tier::device && placement.state != Tier::device;
  const double moved = state_on_disk ? 1 - placement.state_resident : 1;
  count.of_chunks = static_cast<std::int64_t>(
      static_cast<double>(chunks) *
      (1 + moved * ((reads ? 1 : 0) + (writes ? 1 : 0) + (stores ? 1 : 0))));
  if (request.purpose != Purpose::train) return count;
  const auto units = static_cast<std::int64_t>(model.units().size());
  // Forward, backward, and what brings inputs of blocks away and back.
  std::int64_t a_unit = 2 + (request.recompute ? 1 : 0) + 2 * moves_from(placement.boundaries);
  if (request.order == MicroBatchOrder::batch_major) {
    const auto flats = static_cast<std::int64_t>(layout.flats().size());
    a_unit += 2 * moves_from(placement.parameters) * flats / units;
  }
  count.of_micro_batches = request.micro_batches * units * a_unit;
  return count;
}

bool is_countable(const model::Model& model, const shard::Layout& layout,
                  const PlanRequest& request) {
  return task_count(model, layout, request).all() <= kTasksMax;
}

void require_countable(const model::Model& model, const shard::Layout& layout,
                       const PlanRequest& request) {
  const TaskCount count = task_count(model, layout, request);
  if (count.all() <= kTasksMax) return;
  const bool chunks = count.of_chunks > count.of_micro_batches;
  const std::int64_t more = std::max(count.of_chunks, count.of_micro_batches);
  // What the other leaves, or half; and each flat's last chunk is cut short.
  const std::int64_t left = std::max(kTasksMax - (count.all() - more), kTasksMax / 2) / 16 * 15;
  if (chunks) {
    const std::int64_t larger = request.chunk_elements * ((more - 1) / left + 1);
    fail(ErrorKind::usage,
         "chunks of {} elements make about {} tasks of a step, and a plan is made of {} at most: "
         "set zero_optimization.sub_group_size to {}, or leave it out",
         request.chunk_elements, format_count(static_cast<std::uint64_t>(count.all())),
         format_count(kTasksMax), larger);
  }
  const auto fewer =
      static_cast<std::int64_t>(static_cast<double>(request.micro_batches) *
                                static_cast<double>(left) / static_cast<double>(more));
  fail(ErrorKind::usage,
       "an accumulation of {} micro-batches makes about {} tasks of a step, and a plan is made of "
       "{} at most: lower gradient_accumulation_steps to {}, and raise "
       "--per_device_train_batch_size instead",
       request.micro_batches, format_count(static_cast<std::uint64_t>(count.all())),
       format_count(kTasksMax), std::max<std::int64_t>(fewer, 1));
}

}  // namespace terrace::plan
