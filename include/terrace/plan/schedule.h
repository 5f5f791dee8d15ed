#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/indexed.h"
#include "terrace/memory/region.h"

namespace terrace::plan {

/// A queue that runs its tasks in order. On the two disk lanes tasks are *begun* in order and
/// complete in any, but for those about all pages (see there); on all others each completes before
/// the next begins.
enum class Lane : std::uint8_t {
  compute,
  h2d,
  d2h,
  collective,
  disk_read,
  disk_write,
  optimizer,
};
inline constexpr std::array kAllLanes = {Lane::compute,    Lane::h2d,       Lane::d2h,
                                         Lane::collective, Lane::disk_read, Lane::disk_write,
                                         Lane::optimizer};
inline constexpr int kLanes = static_cast<int>(kAllLanes.size());
template <class T>
using ByLane = EnumArray<Lane, T, kLanes>;
[[nodiscard]] std::string_view name_of(Lane lane);
[[nodiscard]] constexpr bool completes_in_order(Lane lane) {
  return lane != Lane::disk_read && lane != Lane::disk_write;
}

/// What a task does. Behind each: its lane, and its accesses in this order (r read, w write).
enum class TaskKind : std::uint8_t {
  copy_batch,       ///< compute: tokens and targets of a micro-batch, or the position of a logit:
                    ///< a few KiB, which must not queue behind the last step's parameters on h2d.
                    ///< r host batch, w device batch
  store_boundary,   ///< d2h: the unit's input, just written, for its backward. w host, r device
  write_boundary,   ///< disk-write: the same, from the host slot it was stored in. w page, r slot
  read_boundary,    ///< disk-read: the unit's input, ahead of its backward. w host slot, r page
  fetch_boundary,   ///< h2d: the unit's input, ahead of its backward. r host, w device slot
  fetch_parameter,  ///< h2d: a flat's parameters. r host parameter, w device slot
  read_parameter,   ///< disk-read: a flat's parameters. w host slot, r pages
  forward,          ///< compute: r batch, w scratch, w saved, w output, r input, r parameters
  recompute,        ///< compute: a forward just before the unit's backward; as `forward`
  head,             ///< compute: forward and backward of the head. r batch, w scratch, w loss,
                    ///< w d_boundary, r input, w accumulators, r parameters
  head_loss,        ///< compute: the loss alone. r batch, w scratch, w loss, r input, r parameters
  head_logits,      ///< compute: r batch, w scratch, r position, w logits, r input, r parameters
  backward,         ///< compute: r batch, w scratch, w saved (used up), w d_boundary, r input,
                    ///< w accumulators, r parameters where it reads them
  round_gradient,   ///< compute: FP32 sums to the gradient dtype. w gradient, r accumulators
  gather_flat,      ///< collective: all ranks' shards of a flat's parameters. r shard where it has
                    ///< memory of its own, w whole
  reduce_flat,      ///< collective: the sum of a flat's gradients over the ranks, of this rank's
                    ///< shard alone where that has memory of its own. w shard where so, w whole
  store_gradient,   ///< d2h: w host gradient, r device gradient
  store_loss,       ///< d2h: w host losses or logits, r those of the device
  norm,             ///< optimizer: partial sums of squares of a flat. r gradient
  decide,      ///< optimizer: the norm, the clip factor, skip or not. r host losses, w decision
               ///< where the updates come before it
  read_chunk,  ///< disk-read: w slots of the state kinds, r pages
  update,      ///< optimizer: w states, w parameter, r gradient
  store_parameter,  ///< h2d: an updated chunk's parameters. w device parameter, r host slot
  write_chunk,      ///< disk-write: w pages, r slots
  settle,           ///< disk-write: drops what a skipped step has written before it was decided.
                    ///< r decision, w all pages that are written before it
  commit,           ///< disk-write: r all pages that are kept
};
[[nodiscard]] std::string_view name_of(TaskKind kind);
/// Whether the task is about all pages that are kept, and has its disk lane for itself: it begins
/// when all before it on the lane have completed, and completes before the next one begins.
[[nodiscard]] constexpr bool is_about_all_pages(TaskKind kind) {
  return kind == TaskKind::settle || kind == TaskKind::commit;
}
[[nodiscard]] constexpr bool moves_boundary(TaskKind kind) {
  return kind == TaskKind::store_boundary || kind == TaskKind::write_boundary ||
         kind == TaskKind::read_boundary || kind == TaskKind::fetch_boundary;
}

/// Bytes [offset, offset + bytes) of a region, read or written.
struct Access {
  memory::RegionId region;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool write = false;
};

/// The task must not begin before `task` of the step `steps_back` (0 or 1) before has completed.
struct Wait {
  int task = 0;
  int steps_back = 0;
  friend bool operator==(const Wait&, const Wait&) = default;
};

/// One operation. Fields that do not apply are -1.
struct Task {
  TaskKind kind = TaskKind::commit;
  Lane lane = Lane::compute;
  int unit = -1;
  int micro_batch = -1;
  int flat = -1;
  int chunk = -1;
  std::uint64_t bytes = 0;  ///< moved, or for `update` and `norm` read and written in RAM
  double flops = 0;
  int first_access = 0;
  int access_count = 0;
  int first_wait = 0;
  int wait_count = 0;
};

/// All tasks of a step, as data, in an order in which running them one after the other is right.
/// The same schedule runs every step; waits may reach into the step before.
struct Schedule {
  Indexed<Task> tasks;
  Indexed<Access> accesses;
  Indexed<Wait> waits;

  [[nodiscard]] std::span<const Access> accesses_of(const Task& task) const {
    const auto first = accesses.begin() + task.first_access;
    return {first, first + task.access_count};
  }
  [[nodiscard]] std::span<const Wait> waits_of(const Task& task) const {
    const auto first = waits.begin() + task.first_wait;
    return {first, first + task.wait_count};
  }
};

/// Derives the waits of `schedule` from its accesses: of each two tasks that touch the same bytes,
/// at least one writing, the later one waits for the earlier one, within a step and from one step
/// to the next; waits that lane order or other waits imply are left out. `regions` must be packed:
/// regions that share memory conflict.
void infer_waits(Schedule& schedule, const memory::MemoryPlan& regions);

using TierBytes = memory::ByTier<std::uint64_t>;

/// The most bytes of each tier that are leased at once, in whole pages, when the tasks run in
/// serial order: all of what is persistent, and each transient region from the first task that
/// touches it to the last; nothing where there are no tasks. The lifetimes that regions were packed
/// by play no part. Lanes that run at the same time take no more memory than that order does, as no
/// address may be used again before its release.
[[nodiscard]] TierBytes peak_bytes(const Schedule& schedule, const memory::MemoryPlan& regions);

/// Proves that `schedule` is safe to run on concurrent lanes: every pair of conflicting accesses is
/// ordered as in the serial order, over any number of steps, nothing waits for what comes later, no
/// two regions that are leased at once share a byte, and what is leased fits into `planned` bytes a
/// tier. Independent of `infer_waits` and of packing. Returns one sentence for each fault, of what
/// conflicts for those that follow each other; empty: safe. Memory goes by the tasks and their
/// accesses, time by how many of those touch each part of a tier.
[[nodiscard]] std::vector<std::string> check(const Schedule& schedule,
                                             const memory::MemoryPlan& regions,
                                             const TierBytes& planned);
/// The same for the bytes that `regions` were packed into.
[[nodiscard]] std::vector<std::string> check(const Schedule& schedule,
                                             const memory::MemoryPlan& regions);

}  // namespace terrace::plan
