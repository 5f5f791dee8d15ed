#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/core/indexed.h"
#include "terrace/core/state_kind.h"
#include "terrace/memory/region.h"
#include "terrace/model/model.h"
#include "terrace/plan/schedule.h"
#include "terrace/shard/layout.h"

namespace terrace::plan {

/// batch_major: all units of one micro-batch, then the next one (classic). unit_major: all
/// micro-batches of a unit, then the next unit, so that parameters move once per pass. The numbers
/// are the same to the bit.
enum class MicroBatchOrder { batch_major, unit_major };

/// One kind of optimizer state and its bytes an element.
struct StateElement {
  StateKind kind = StateKind::master;
  int bytes = 4;
};

/// Which tier holds what. The optimizer's state is placed chunk by chunk: the first
/// `state_resident` of its elements stay on `resident_tier`, the rest lies on `state`. The
/// parameters are placed flat by flat, see `resident_order`: the first `parameters_resident` of
/// their elements, in whole flats, stay on `parameters_resident_tier`, a faster one than that of
/// the rest, which streams. For boundaries see "Note on boundaries".
struct Placement {
  memory::Tier parameters = memory::Tier::device;
  memory::Tier state = memory::Tier::device;
  memory::Tier resident_tier = memory::Tier::host;
  double state_resident = 0;
  memory::Tier parameters_resident_tier = memory::Tier::device;
  double parameters_resident = 0;
  memory::Tier boundaries = memory::Tier::device;
  double boundaries_resident = 0;  ///< share, in whole boundaries, that stays on the device
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// The flats in the order in which their parameters become resident: those first that a step
/// fetches more often (a block's twice, a tied weight's for each of its users), as one update moves
/// a parameter once wherever it is; then in forward order, as nothing hides the first units' fetch.
/// Accesses are cyclic, so that what is fixed there is used each step, while of what is kept for
/// being used last nothing would be.
[[nodiscard]] std::vector<int> resident_order(const model::Model& model,
                                              const shard::Layout& layout);

/// Steps that may be under way at once: while one step's last updates run, the next one's forward
/// has begun.
inline constexpr int kStepsInFlight = 2;

/// train: steps, with an evaluation in between. evaluate, generate: parameters and forwards only;
/// `generate` ends in the logits of one position instead of a loss.
enum class Purpose { train, evaluate, generate };

/// Note on commits. Where all state that a step changes is on disk (what is computed from it, a
/// parameter in RAM from its master, does not count), each page has two extents and every step ends
/// with a commit, which saves the run. Where some of that state is elsewhere, or one extent is
/// asked for, a commit would save nothing: there is none, and a page has one extent.

/// Note on updates before the decision. A step is decided when the last gradient is known to be
/// finite. A chunk may be updated before that only out of place, so that a skipped step can drop
/// the new version. Where all state is on disk and committed, and without clipping, every chunk
/// whose parameters are on disk too is updated as soon as its gradient is final, under backward,
/// and written to its other extent; its gradient is dropped. `settle` then drops the new version of
/// a skipped step, and nothing reads one of these pages for the next step before it. All other
/// chunks, some of which is updated in place, wait for the decision, and their gradients are kept
/// until then.

/// Note on sharding. Of several ranks (the layout's world size) each owns an equal part of every
/// flat, and the plans of all ranks are alike: a plan is that of rank 0, whose part comes first.
/// From ZeRO stage 1 on a rank keeps the optimizer's state of its own part only, from 2 on the
/// gradients too, from 3 on the parameters too. Gradients that leave the device are those of the
/// own part from stage 1 on. Stages 1 and 2 gather the updated parameters at a step's end, stage 3
/// gathers a unit's when it is visited. The few bytes that the ranks agree on when a step is
/// decided are no task of their own. Source: Rajbhandari et al., ZeRO, 2019.

/// Note on slots. The optimizer's state moves in chunks of at most `chunk_elements`, whatever the
/// tensors: a flat that is larger (an embedding's) is read, updated, written, loaded and saved in
/// several, and any chunk slot holds any chunk. Parameters and gradients move a flat at a time, as
/// kernels take whole tensors: a slot is as large as its flat, and no flat is split. So whatever
/// the chunk, the least that a plan takes beside activations is, of the largest units: on the
/// device the FP32 gradient sums of one (with accumulation in batch-major order: of all), where
/// parameters are streamed those of `prefetch_units` + 1 in a row, and where gradients leave the
/// device two of them rounded; on the host, where parameters are on disk, those of two, and where
/// gradients are not kept, two of them. The sums of a tied weight's users are held until the last.

/// Note on boundaries. A unit's output is the next unit's input, and is kept from its forward to
/// the next unit's backward: in batch-major order those of one micro-batch at a time, in unit-major
/// order of all. Placed on the host, each is stored there right after the forward that writes it
/// and fetched `prefetch_units` units ahead of the backward that reads it, but not before the
/// head's turn; on the device it has a slot only while it is written, read or copied. So the device
/// holds at most `prefetch_units` + 1 a micro-batch, their gradients among them, and two more.
/// Placed on disk, each passes one of `prefetch_units` + 2 host slots on its way there and back. It
/// is scratch there, written by each step before it is read: of one extent, in no commit. Two never
/// leave: the head's input, which no backward reads after the head, and, if anything is fetched
/// ahead, the last block's, whose fetch would begin as soon as it had left. Of the others a share
/// may stay on the device: the last ones of the forward, which backward wants first. Without
/// recomputation what a unit keeps besides its input stays on the device.

/// What a plan is made for.
struct PlanRequest {
  Purpose purpose = Purpose::train;
  model::BatchShape micro_batch;
  int micro_batches = 1;  ///< per step and rank: `gradient_accumulation_steps`
  MicroBatchOrder order = MicroBatchOrder::batch_major;
  bool recompute = true;
  DType gradient = DType::f32;
  Indexed<StateElement> state;
  /// The update reads the parameter it writes (the `split` format).
  bool update_reads_parameter = false;
  bool may_update_before_decision = false;  ///< there is neither clipping nor a loss scale
  int disk_extents = 2;                     ///< a page's, at most: see "Note on commits"
  int zero_stage = 0;         ///< 0 to 3, see "Note on sharding"; without effect on one rank
  bool device_is_ram = true;  ///< as the host device's; a GPU has memory of its own
  Placement placement;
  std::int64_t chunk_elements = std::int64_t{1} << 21;  ///< a multiple of 2048
  int chunk_slots = 4;                                  ///< chunks in flight from and to disk
  int prefetch_units = 1;  ///< of streamed parameters and boundaries: units ahead
  /// For whoever adds up what the process takes beside its plan: how many threads compute, and how
  /// many steps are traced.
  int threads = 1;
  std::int64_t traced_steps = 0;
};

/// The range of elements that one optimizer task reads, updates and writes.
struct Chunk {
  int flat = 0;
  shard::Range range;
  memory::Tier tier = memory::Tier::device;  ///< of its master and moments
};

/// Where the bytes of `kind` of elements of one chunk lie: a region of the slab, or a disk page.
struct Place {
  memory::RegionId region = memory::kNoRegion;
  std::uint64_t offset = 0;
};

/// A run's memory and order of work, complete before anything is allocated.
struct Plan {
  PlanRequest request;
  memory::MemoryPlan memory;
  Schedule training;      ///< one optimizer step; empty for other purposes
  Schedule evaluation;    ///< forward of one micro-batch, and its loss or logits
  Indexed<Chunk> chunks;  ///< in forward order; ascending ranges of ascending flats

  /// [chunk][index into request.state]
  Indexed<Indexed<Place>> state;
  /// [chunk]: the parameter's home (device, host or disk page).
  Indexed<Place> parameter;
  Indexed<memory::Tier> parameter_tier;  ///< [flat]
  /// [flat]: the whole parameter on its tier when that is device or host.
  Indexed<memory::RegionId> flat_parameter;
  /// [flat]: the host's copy of a parameter on the device, where the update reads it; else none.
  Indexed<memory::RegionId> host_parameter;
  /// [flat]: the gradient that the optimizer reads.
  Indexed<memory::RegionId> gradient;
  /// The homes of boundaries that leave the device, in the order in which backward wants them.
  Indexed<memory::RegionId> boundary_home;
  /// [micro-batch]: tokens, then targets, int32 each, [B, T].
  Indexed<memory::RegionId> host_batch;
  memory::RegionId host_losses;                        ///< one double a micro-batch
  memory::RegionId host_position = memory::kNoRegion;  ///< generate: an int32, the row of [B, T]
  memory::RegionId host_logits = memory::kNoRegion;    ///< generate: [V], FP32
  /// Host memory through which state is loaded and saved: `transfer_pages` parts of
  /// `transfer_bytes`, each for one chunk of up to four bytes an element.
  memory::RegionId transfer;
  std::uint64_t transfer_bytes = 0;
  int transfer_pages = 0;
  /// See "Note on commits".
  bool commits_every_step = false;
  /// Whether some chunks' updates come before the decision, and whether a flat's do: see "Note on
  /// updates before the decision".
  bool updates_before_decision = false;
  [[nodiscard]] bool updates_early(int flat) const {
    return updates_before_decision && parameter_tier[flat] == memory::Tier::disk;
  }

  /// Bytes of a state kind that the rank keeps from step to step, on all tiers together.
  [[nodiscard]] std::uint64_t kept_bytes(StateKind kind) const;
  [[nodiscard]] bool uses_disk() const { return memory.bytes(memory::Tier::disk) > 0; }
  /// How often what is kept on a tier is reserved: on disk, a page's extents.
  [[nodiscard]] std::uint64_t copies(memory::Tier tier) const {
    return tier == memory::Tier::disk && commits_every_step ? 2 : 1;
  }
  /// What is reserved on a tier, and of it for one purpose.
  [[nodiscard]] std::uint64_t reserved_bytes(memory::Tier tier) const {
    return memory.bytes(tier) + (copies(tier) - 1) * memory.persistent_bytes(tier);
  }
  [[nodiscard]] std::uint64_t reserved_bytes(const memory::PurposeBytes& row) const {
    return row.bytes + (copies(row.tier) - 1) * row.persistent_bytes;
  }
};

/// Makes the plan for one rank: pure arithmetic, nothing is allocated or read.
/// Errors: usage, when the request contradicts itself, or makes too many tasks of a step.
[[nodiscard]] Plan make_plan(const model::Model& model, const shard::Layout& layout,
                             const PlanRequest& request);
/// The same without the waits of its schedules, which take most of the time: enough for all that
/// the plan takes and moves, and for nothing that runs or predicts it. `complete` adds them.
[[nodiscard]] Plan draft_plan(const model::Model& model, const shard::Layout& layout,
                              const PlanRequest& request);
void complete(Plan& draft);
/// Whether a step of it has no more tasks than a plan is made of; the others refuse what has.
[[nodiscard]] bool is_countable(const model::Model& model, const shard::Layout& layout,
                                const PlanRequest& request);

}  // namespace terrace::plan
