#include "terrace/plan/search.h"

#include <algorithm>
#include <utility>

#include "candidates.h"
#include "filling.h"
#include "terrace/core/error.h"
#include "terrace/plan/simulate.h"

namespace terrace::plan {
namespace {

using memory::Tier;

/// A candidate that comes later in their order must take at most this share of a step's time to be
/// taken instead.
constexpr double kWorthIt = 0.99;

/// Makes the candidates' plans, fills them up and keeps the best one, see `keep_better`.
class Search {
 public:
  Search(const model::Model& model, const shard::Layout& layout, const Policy& policy)
      : model_(model), layout_(layout), policy_(policy), budgets_(policy.budgets) {}

  std::variant<Choice, Refusal> run() {
    const std::vector<Candidate> list = candidates(policy_, model_, layout_);
    process_bytes_.assign(list.size(), 0);
    for (std::size_t index = 0; index < list.size(); ++index) {
      if (is_needed(list[index])) try_candidate(list, index);
    }
    if (fastest_) return Choice{std::move(*fastest_), fitting_};
    require(nearest_.has_value(), ErrorKind::internal, "the policy allows no placement at all");
    return refusal();
  }

 private:
  /// Not where it uses drives, which wear, or has parameters on disk, and one that fits does
  /// without. Nor where parameters fit on the device with one micro-batch, which fetches nothing
  /// again and again: what leaves the device then moves as much as what takes its place would. Nor
  /// where all is on the device, or what comes later has more tasks than a plan is made of.
  [[nodiscard]] bool is_needed(const Candidate& candidate) const {
    if (!fastest_) return true;
    const PlanRequest& found = fastest_->request;
    const bool moves_nothing = found.placement.parameters == Tier::device &&
                               found.placement.state == Tier::device &&
                               found.placement.boundaries == Tier::device;
    if (moves_nothing) return false;
    if (candidate.uses_disk() && !fastest_->uses_disk()) return false;
    if (found.micro_batches == 1 && found.placement.parameters == Tier::device) return false;
    if (candidate.placement.parameters == Tier::disk && found.placement.parameters != Tier::disk) {
      return false;
    }
    return is_countable(model_, layout_, request_for(policy_, candidate.placement));
  }

  [[nodiscard]] Plan make(const Placement& placement, int slots_min = 1) const {
    PlanRequest request = request_for(policy_, placement);
    request.chunk_slots = std::max(request.chunk_slots, slots_min);
    return draft_plan(model_, layout_, request);
  }

  void try_candidate(const std::vector<Candidate>& list, std::size_t index) {
    const Candidate& candidate = list[index];
    Plan begun = make(candidate.placement);
    const Need need(begun);
    process_bytes_[index] = need.process_bytes;
    if (const auto other = candidate.instead_of) {
      if (process_bytes_[*other] <= need.process_bytes) return;
    }
    if (!candidate.fills_both() || !need.fits(budgets_)) {
      offer(fill(std::move(begun), candidate, Order::boundaries_first));
      return;
    }
    // With boundaries first a later candidate is hardly ever faster than the first that fits,
    // unless they would go to a disk.
    if (!fastest_ || candidate.placement.boundaries == Tier::disk) {
      offer(fill(begun, candidate, Order::boundaries_first));
    }
    offer(fill(std::move(begun), candidate, Order::parameters_first));
  }

  /// Which of the two fills what both would.
  enum class Order { boundaries_first, parameters_first };

  [[nodiscard]] Plan fill(Plan plan, const Candidate& candidate, Order order) const {
    const Filling filling{model_, layout_, budgets_,
                          [&](const Placement& placement) { return make(placement); }};
    const Need need(plan);
    const bool fits = need.fits(budgets_);
    const bool parameters_too = fits && candidate.fills_parameters;
    if (parameters_too && order == Order::parameters_first) fill_parameters(plan, filling);
    if (fits && candidate.fills_boundaries) fill_boundaries(plan, filling);
    if (parameters_too && order == Order::boundaries_first) fill_parameters(plan, filling);
    const bool may_fit =
        !policy_.request.device_is_ram && need.device_bytes <= budgets_.device_bytes;
    if ((fits || may_fit) && candidate.fills_state) fill_state(plan, filling);
    if (!policy_.keeps_chunk_slots && Need(plan).fits(budgets_)) {
      Plan wide = make(plan.request.placement, kChunkSlotsMax);
      if (Need(wide).fits(budgets_)) return wide;
    }
    return plan;
  }

  /// Takes a plan if it fits and is the best so far, or if nothing has fitted and it is nearest.
  void offer(Plan plan) {
    const Need need(plan);
    if (need.fits(budgets_) && (!policy_.fits_drives || policy_.fits_drives(plan))) {
      keep_better(std::move(plan));
      return;
    }
    if (nearest_ && Need(*nearest_).excess(budgets_) < need.excess(budgets_)) return;
    nearest_ = std::move(plan);
  }

  /// A plan that fits: one without drives rather than one with them, else the faster one.
  void keep_better(Plan plan) {
    complete(plan);
    ++fitting_;
    if (fastest_) {
      if (!fastest_seconds_) fastest_seconds_ = seconds_of(*fastest_);
      const double seconds = seconds_of(plan);
      const bool spares_drives = fastest_->uses_disk() && !plan.uses_disk();
      if (!spares_drives && seconds > kWorthIt * *fastest_seconds_) return;
      fastest_seconds_ = seconds;
    }
    fastest_ = std::move(plan);
  }

  /// Why not even the nearest fits.
  [[nodiscard]] Refusal refusal() {
    using enum Refusal::Lack;
    const Need need(*nearest_);
    Refusal refusal{std::move(*nearest_), process, {}};
    if (need.device_bytes > budgets_.device_bytes) refusal.lack = device;
    if (need.fits(budgets_)) refusal.lack = drives;
    if (refusal.lack == drives) return refusal;
    refusal.reliefs =
        reliefs(model_, layout_, policy_,
                refusal.lack == device ? &Need::device_bytes : &Need::process_bytes, need);
    return refusal;
  }

  [[nodiscard]] double seconds_of(const Plan& plan) const {
    return simulate(plan.training, policy_.rates,
                    {.compute = model_.compute_dtype(), .steps_in_flight = kStepsInFlight})
        .step_seconds;
  }

  const model::Model& model_;
  const shard::Layout& layout_;
  const Policy& policy_;
  const Budgets& budgets_;
  std::vector<std::uint64_t> process_bytes_;  ///< of the candidates that were tried
  std::optional<Plan> nearest_;               ///< to what fits
  std::optional<Plan> fastest_;               ///< of those that fit
  std::optional<double> fastest_seconds_;     ///< known once there is another to compare it with
  int fitting_ = 0;
};

}  // namespace

std::variant<Choice, Refusal> search(const model::Model& model, const shard::Layout& layout,
                                     const Policy& policy) {
  return Search(model, layout, policy).run();
}

}  // namespace terrace::plan
