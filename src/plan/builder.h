#pragma once

#include <optional>
#include <vector>

#include "terrace/core/units.h"
#include "terrace/plan/plan.h"

namespace terrace::plan {

/// What a transfer of `bytes` to or from a disk touches in memory: whole blocks.
[[nodiscard]] constexpr std::uint64_t whole_blocks(std::uint64_t bytes) {
  return round_up(bytes, memory::MemoryPlan::kAlignmentBytes);
}

/// Lays out a plan's regions and emits its tasks in serial order, without their waits.
///
/// Note on serial order. Tasks are emitted in an order in which one after the other is right; that
/// order is what the waits are derived from and checked against. On each lane it is also the order
/// of execution, so a fetch that is emitted some units ahead of its use runs that far ahead, as far
/// as the memory it writes is free.
///
/// Note on passing memory. What passes between two lanes (a unit's parameters from disk to h2d, its
/// gradient from compute to d2h and from there to the optimizer) keeps its memory until the next
/// unit's has been passed on. Packed by their bare lifetimes the two would share it, and the one
/// lane would stand still while the other works.
class Builder {
 public:
  Builder(const model::Model& model, const shard::Layout& layout, const PlanRequest& request);
  [[nodiscard]] Plan build() &&;

 private:
  /// A run of tasks on the compute lane that use one unit's parameters.
  struct Visit {
    enum class Pass { forward, head, head_loss, head_logits, backward };
    Pass pass = Pass::forward;
    int unit = 0;
    int first_micro_batch = 0;
    int micro_batches = 1;
  };
  /// Host memory through which one chunk passes.
  struct Slot {
    std::vector<memory::RegionId> state;  ///< by index into request.state
    memory::RegionId parameter = memory::kNoRegion;
  };
  /// A page and the slot that it passes through.
  struct PageMove {
    memory::RegionId page;
    memory::RegionId slot;
  };

  void place_parameters();
  void cut_chunks();
  void add_parameters();
  void add_gradients();
  void add_state();
  void add_activations();
  void add_boundaries(int copies);

  [[nodiscard]] std::vector<Visit> training_visits() const;
  [[nodiscard]] std::vector<Visit> evaluation_visits() const;
  void emit_training();
  void emit_evaluation();
  void emit_visits(const std::vector<Visit>& visits);
  /// Whether the visit reads its unit's parameters.
  [[nodiscard]] bool reads_parameters(const Visit& visit) const {
    return visit.pass != Visit::Pass::backward || model_.backward_reads_weights(visit.unit);
  }
  /// Copies the visited unit's streamed parameters to device slots: `fetched_[visit]`, where those
  /// that stay on the device are too.
  void emit_fetch(std::size_t visit, int unit);
  /// Reads a flat's parameters from disk to a host slot.
  memory::RegionId emit_read(int flat, int unit, std::uint64_t bytes);
  /// Before the visit's turn with a micro-batch: see "Note on boundaries" in plan.h.
  void emit_boundary_fetches(const std::vector<Visit>& visits, std::size_t index, int micro_batch);
  /// The input of `unit` to its home, or back to a slot on the device.
  void emit_store_boundary(int unit, int micro_batch);
  void emit_fetch_boundary(int unit, int micro_batch);
  void emit_forward(const Visit& visit, std::size_t index, int micro_batch, TaskKind kind);
  void emit_head(const Visit& visit, std::size_t index, int micro_batch);
  void emit_logits(const Visit& visit, std::size_t index);
  void emit_backward(const Visit& visit, std::size_t index, int micro_batch);
  void emit_gradient(int flat);
  /// The sum over the ranks of the gradient in `rounded`; returns the region that holds what this
  /// rank goes on with.
  memory::RegionId emit_reduce(int flat, memory::RegionId rounded);
  /// All ranks' shards in `shard` to `target`, which may be the region that holds the shard.
  void emit_gather(int flat, memory::RegionId shard, memory::RegionId target);
  void emit_decision();
  /// The tasks of all chunks of a flat, and of one.
  void emit_chunks(int flat);
  void emit_chunk(int chunk);
  /// `read_chunk` or `write_chunk`, if there is anything to move.
  void emit_moves(TaskKind kind, int chunk, const std::vector<PageMove>& moves);
  /// Where the update of a chunk puts its parameter; `slot` is the chunk's, or null.
  [[nodiscard]] Access updated_parameter(int chunk, const Slot* slot) const;
  void label(Task& task, int chunk, std::uint64_t bytes) const;

  Task& emit(TaskKind kind, Lane lane, std::vector<Access> accesses);
  void append_accumulators(int unit, std::vector<Access>& accesses) const;
  void append_parameters(std::size_t visit, std::vector<Access>& accesses) const;
  /// See "Note on passing memory": the regions of the unit before and of this one are kept until
  /// here. Those of this one are then in `before`, and `now` is empty.
  void keep_two(std::vector<memory::RegionId>& before, std::vector<memory::RegionId>& now);
  memory::RegionId add_transient(std::string purpose, memory::Tier tier, std::uint64_t bytes);
  [[nodiscard]] Access whole(memory::RegionId region, bool write) const;
  [[nodiscard]] Access part(memory::RegionId region, shard::Range range, std::size_t element_bytes,
                            bool write) const;

  [[nodiscard]] bool is_transient(memory::RegionId region) const {
    const auto index = static_cast<std::size_t>(region.value);
    return index < transient_.size() && transient_[index];
  }
  [[nodiscard]] int unit_count() const { return static_cast<int>(model_.units().size()); }
  [[nodiscard]] model::UnitKind kind_of(int unit) const {
    return model_.units()[static_cast<std::size_t>(unit)].kind;
  }
  [[nodiscard]] memory::Tier parameter_tier(int flat) const {
    return plan_.parameter_tier[static_cast<std::size_t>(flat)];
  }
  [[nodiscard]] bool boundaries_on(memory::Tier tier) const {
    return request_.placement.boundaries == tier;
  }
  /// Whether what ZeRO shards from `stage` on is sharded; then the rank keeps its part only.
  [[nodiscard]] bool shards(int stage) const {
    return layout_.world_size() > 1 && request_.zero_stage >= stage;
  }
  [[nodiscard]] bool shards_gradients() const {
    return shards(gradient_tier_ == memory::Tier::device ? 2 : 1);
  }
  /// Elements of a flat that the rank keeps.
  [[nodiscard]] std::int64_t kept(const shard::Flat& flat, bool sharded) const {
    return sharded ? layout_.shard(flat.id, 0).count : flat.elements;
  }
  /// The share of a whole flat that a rank gets from, or gives to, the others.
  [[nodiscard]] std::uint64_t exchanged(std::uint64_t bytes) const {
    const auto ranks = static_cast<std::uint64_t>(layout_.world_size());
    return bytes / ranks * (ranks - 1);
  }
  [[nodiscard]] std::uint64_t parameter_bytes() const { return size_of(model_.compute_dtype()); }
  /// Which copy of per-micro-batch memory a micro-batch uses: in batch-major order all share one.
  [[nodiscard]] std::size_t copy_of(int micro_batch) const;
  [[nodiscard]] memory::RegionId saved_of(int unit, int micro_batch) const;
  /// The first so many: see "Note on boundaries" in plan.h.
  [[nodiscard]] int units_whose_output_may_leave() const;
  [[nodiscard]] std::uint64_t boundary_bytes(int unit) const {
    return unit_memory_[static_cast<std::size_t>(unit)].boundary_bytes;
  }
  /// Whether a unit's output has no memory of its own on the device, but a new slot for each use.
  [[nodiscard]] bool passes(int unit, std::size_t copy) const;
  [[nodiscard]] memory::RegionId add_boundary_slot(int unit);
  /// Where that output lies on the host: at home, or on its way to or from the disk.
  [[nodiscard]] Access host_boundary(int unit, std::size_t copy, bool write);

  const model::Model& model_;
  const shard::Layout& layout_;
  const PlanRequest& request_;
  std::vector<model::UnitMemory> unit_memory_;  ///< [unit]: what a micro-batch takes
  Plan plan_;
  memory::Tier gradient_tier_ = memory::Tier::host;
  Schedule* schedule_ = nullptr;
  std::int64_t base_ = 0;  ///< position of the schedule's first task in region lifetimes
  std::vector<bool> transient_;

  // By unit and copy of the micro-batch.
  std::vector<std::vector<memory::RegionId>> boundary_;  ///< the output, on the device just now
  std::vector<std::vector<memory::RegionId>> boundary_home_;  ///< where it leaves the device
  std::vector<std::vector<memory::RegionId>> saved_;
  std::vector<memory::RegionId> d_boundary_;
  memory::RegionId scratch_;
  std::vector<memory::RegionId> device_batch_;
  memory::RegionId device_losses_;
  memory::RegionId device_position_;
  memory::RegionId device_logits_;
  /// [unit][position in flats_of_unit]: FP32 sums of one user of the flat, so that a tied weight's
  /// sum does not depend on the micro-batch order.
  std::vector<std::vector<memory::RegionId>> accumulators_;
  // See "Note on passing memory": of the unit before, and of the one that is being emitted.
  std::vector<memory::RegionId> reads_before_;
  std::vector<memory::RegionId> reads_now_;
  std::vector<memory::RegionId>
      passing_;  ///< the latest host slots of boundaries, as many as may be
  std::vector<memory::RegionId> gradients_before_;
  std::vector<memory::RegionId> gradients_now_;
  std::vector<std::vector<memory::RegionId>> fetched_;  ///< [visit][position in flats_of_unit]
  std::vector<Slot> slots_;
  std::vector<bool> needs_slot_;                  ///< [chunk]
  std::size_t next_slot_ = 0;                     ///< chunks take the slots in turn
  std::vector<int> first_chunk_;                  ///< [flat], and the end
  memory::RegionId decision_{memory::kNoRegion};  ///< where updates come before the decision
};

}  // namespace terrace::plan
