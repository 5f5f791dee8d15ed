#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "terrace/plan/hardware_profile.h"
#include "terrace/plan/need.h"
#include "terrace/plan/plan.h"

// The search for a placement:
//
//   plan::Policy policy;
//   policy.request.micro_batch = {8, 1024};
//   policy.budgets.process_bytes = 64 * kGiB;
//   const auto found = plan::search(model, layout, policy);
//   if (const auto* choice = std::get_if<plan::Choice>(&found)) run(choice->plan);

namespace terrace::plan {

/// Chunks in flight, and where RAM is left for them. Four keep disks and optimizer at work; with
/// eight none of them waits for one that another lane is late with.
inline constexpr int kChunkSlots = 4;
inline constexpr int kChunkSlotsMax = 8;

/// Where one kind of data must lie.
struct Pin {
  std::optional<memory::Tier> tier = {};  ///< none: wherever is best
  double share = 1;                       ///< that lies there; the rest stays on a faster tier
};

/// What a search may choose among, and by what it judges.
struct Policy {
  PlanRequest request;  ///< all but placement and order
  /// None: unit-major where parameters are streamed for several micro-batches.
  std::optional<MicroBatchOrder> order = {};
  Pin parameters;
  Pin state;
  Pin activations;
  bool device_is_bounded = false;  ///< a share of the device's memory was named
  bool has_drives = false;
  bool keeps_chunk_slots = false;  ///< no more of them where RAM is left
  /// Set when the run goes on with a store, which holds all of the optimizer's state: how many
  /// bytes of parameters it holds as well.
  std::optional<std::uint64_t> stored_parameter_bytes = {};
  Budgets budgets = {};
  /// Whether the drives hold what a plan reserves there; empty: they hold any.
  std::function<bool(const Plan&)> fits_drives = {};
  HardwareProfile rates;  ///< complete enough for any schedule
};

/// The best plan.
struct Choice {
  Plan plan;
  int fitting = 1;  ///< plans that fitted and were compared
};

/// A change of the policy that may make a plan fit.
enum class Change : std::uint8_t {
  use_drives,
  free_state,  ///< the state may lie anywhere
  free_parameters,
  free_activations,
  shard_parameters,
  one_row,      ///< a micro-batch
  half_length,  ///< of a sequence
  no_clipping,
  fewer_chunk_slots,  ///< kChunkSlots
};

/// A change and what the least plan needs with it.
struct Relief {
  Change change = Change::use_drives;
  std::uint64_t bytes = 0;
};

/// Why no plan fits: of the one that came nearest.
struct Refusal {
  enum class Lack : std::uint8_t { device, process, drives };
  Plan nearest;  ///< a draft
  Lack lack = Lack::process;
  /// The two changes that lower the need of what lacks most, if any does: drives first.
  std::vector<Relief> reliefs;
};

/// The length of a sequence after `Change::half_length`.
[[nodiscard]] std::int64_t half_length(const PlanRequest& request);

/// Makes the plan that the policy asks for. A placement that is not pinned fills the fastest tiers
/// that the budgets allow, disks only where there are drives: of the parameters as many whole flats
/// as fit on the faster of two tiers, then of the optimizer's state as many whole chunks, the rest
/// on the slower (of the state nothing while parameters are left on disk, so that each step is
/// committed; with a store to go on with, what it holds stays there). Where the device is bounded,
/// boundaries that it does not hold go to the host; to disk where that leaves RAM for something
/// else. What is pinned stays pinned. RAM that is left then holds more chunks in flight. See "Note
/// on the choice".
///
/// Note on the choice. A byte of the device moves least where it holds boundaries if there are many
/// micro-batches, parameters if there are few, and what it hides depends on which lane is late with
/// what: so no order of filling is the best one. The first candidate that fits is filled in both
/// orders, those after it, on other tiers, with parameters first, and their schedules are run on
/// the modelled clock. The first that fits is kept unless another one takes at least 1 % less, or
/// does without the drives that it uses. Once one fits that has parameters in RAM, none is tried
/// that has them on disk. The same model, layout and policy always make the same plan.
/// Errors: as `make_plan`; internal, where the pins leave no placement at all.
[[nodiscard]] std::variant<Choice, Refusal> search(const model::Model& model,
                                                   const shard::Layout& layout,
                                                   const Policy& policy);

}  // namespace terrace::plan
