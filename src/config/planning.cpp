#include "terrace/config/planning.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "candidates.h"
#include "filling.h"
#include "plan_request.h"
#include "terrace/config/budgets.h"
#include "terrace/config/drives.h"
#include "terrace/config/profile.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/plan/simulate.h"

namespace terrace::config {
namespace {

using memory::Tier;

/// Far above what any machine computes at once, and low enough that its memory is soon added up.
constexpr std::int64_t kMicroBatchTokensMax = std::int64_t{1} << 22;

/// What the slowest placement that the settings allow needs, which takes least; boundaries take
/// least where they pass no more slots than there are of them.
std::uint64_t least_need(const Settings& settings, const PlanInput& what,
                         std::uint64_t plan::Need::*need) {
  const ParameterSize size{what.layout.elements(), size_of(what.model.compute_dtype())};
  const std::vector<Candidate> list = candidates(settings, what.basis, size);
  const plan::Placement& slowest = list.back().placement;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const Candidate& candidate : list) {
    const plan::Placement& placement = candidate.placement;
    if (placement.parameters != slowest.parameters || placement.state != slowest.state) continue;
    const PlanInput changed{settings, what.model, what.layout, what.basis};
    const plan::PlanRequest request = request_for(changed, placement);
    least = std::min(least, plan::Need(plan::draft_plan(what.model, what.layout, request)).*need);
  }
  return least;
}

/// The two changes of settings that lower `need` of the least plan most (a drive, where there is
/// none, is one of them if it helps), as flags with what it would then be, which is less than
/// `refused` is; empty when nothing helps.
std::string ways_out(const PlanInput& what, std::uint64_t plan::Need::*need,
                     const plan::Need& refused) {
  struct Way {
    std::string flag;
    std::uint64_t bytes = 0;
  };
  std::vector<Way> ways;
  auto try_way = [&](std::string flag, auto&& change) {
    Settings changed = what.settings;
    change(changed);
    ways.push_back({std::move(flag), least_need(changed, what, need)});
  };
  const model::BatchShape micro_batch = micro_batch_shape(what.settings, what.model.config());
  const std::int64_t half = micro_batch.sequence / 2;
  const PlacementSettings& placement = what.settings.placement;
  if (placement.swap.empty()) {
    try_way("--swap DIR with a folder on an NVMe drive",
            [](Settings& changed) { changed.placement.swap = {"DIR"}; });
  }
  if (placement.optimizer.device != Placement::automatic) {
    try_way("--offload_optimizer auto",
            [](Settings& changed) { changed.placement.optimizer.device = Placement::automatic; });
  }
  if (placement.parameters.device != Placement::automatic) {
    try_way("--offload_param auto",
            [](Settings& changed) { changed.placement.parameters.device = Placement::automatic; });
  }
  if (placement.activations.device != Placement::automatic) {
    try_way("--offload_activations auto",
            [](Settings& changed) { changed.placement.activations.device = Placement::automatic; });
  }
  const std::int64_t stage = what.settings.ranks.zero_stage.value_or(3);
  if (what.layout.world_size() > 1 && stage < 3) {
    try_way("--zero_stage 3", [](Settings& changed) { changed.ranks.zero_stage = 3; });
  }
  if (micro_batch.rows > 1) {
    try_way("--per_device_train_batch_size 1", [](Settings& changed) { changed.batch.micro = 1; });
  }
  try_way(fmt::format("--max_length {}", half),
          [&](Settings& changed) { changed.data.max_length = std::max<std::int64_t>(1, half); });
  if (what.settings.optimizer.max_grad_norm > 0) {
    try_way("--max_grad_norm 0", [](Settings& changed) { changed.optimizer.max_grad_norm = 0; });
  }
  if (placement.optimizer.buffer_count > kChunkSlots) {
    try_way(fmt::format("--set zero_optimization.offload_optimizer.buffer_count={}", kChunkSlots),
            [](Settings& changed) { changed.placement.optimizer.buffer_count = kChunkSlots; });
  }
  const std::uint64_t now = std::min(least_need(what.settings, what, need), refused.*need);
  std::erase_if(ways, [&](const Way& way) { return way.bytes >= now; });
  // A drive is named whatever it gains: it is what holds any model.
  const bool drive = !ways.empty() && ways.front().flag.starts_with("--swap");
  std::ranges::stable_sort(ways.begin() + (drive ? 1 : 0), ways.end(), {}, &Way::bytes);
  if (ways.size() > 2) ways.resize(2);
  std::string text;
  for (const Way& way : ways) {
    text += fmt::format("{}{} takes {}", text.empty() ? ", or lower the need: " : ", ", way.flag,
                        format_bytes(way.bytes));
  }
  return text;
}

/// The share of the parameters that stays on the faster tier.
double parameters_resident(const plan::Plan& plan) {
  std::int64_t all = 0;
  std::int64_t resident = 0;
  for (const plan::Chunk& chunk : plan.chunks) {
    const Tier tier = plan.parameter_tier[static_cast<std::size_t>(chunk.flat)];
    all += chunk.range.count;
    if (tier != plan.request.placement.parameters) resident += chunk.range.count;
  }
  return static_cast<double>(resident) / static_cast<double>(all);
}

std::string describe(const plan::Plan& plan, bool automatic) {
  const plan::Placement& placement = plan.request.placement;
  auto place = [](Tier tier, Tier resident_tier, double resident) -> std::string {
    auto name = [](Tier of) {
      return of == Tier::device ? "device" : of == Tier::host ? "host RAM" : "disk";
    };
    if (resident == 0) return name(tier);
    if (resident == 1) return name(resident_tier);
    const double percent = resident * 100;
    const std::string share = percent > 99  ? "more than 99"
                              : percent < 1 ? "less than 1"
                                            : fmt::format("{:.0f}", percent);
    return fmt::format("{} ({} % of them on {})", name(tier), share, name(resident_tier));
  };
  const std::string boundaries =
      plan.boundary_home.empty()
          ? ""
          : ", inputs of blocks on " +
                place(placement.boundaries, Tier::device, placement.boundaries_resident);
  return fmt::format(
      "parameters on {}, master and moments on {}{}{}",
      place(placement.parameters, placement.parameters_resident_tier, parameters_resident(plan)),
      place(placement.state, placement.resident_tier, placement.state_resident), boundaries,
      automatic ? " (auto)" : " (as asked)");
}

/// What a run with this plan reserves on its drives, and what they give it.
struct DiskNeed {
  DiskNeed(const PlanInput& what, const ChosenPlan& chosen) : bytes(chosen.store_bytes) {
    OnDrives found{.freed_bytes = what.basis.freed_disk_bytes};
    if (what.basis.store_parameter_bytes) {
      bytes = scratch_bytes(chosen.plan);
      found.held_bytes = chosen.store_bytes - bytes;
    }
    limit = disk_limit(what.settings.placement, found);
  }

  [[nodiscard]] bool fits() const { return bytes <= limit.bytes; }

  std::uint64_t bytes;
  DiskLimit limit;
};

/// Says why not even the plan that came nearest fits, and what would help.
[[noreturn]] void refuse(const PlanInput& what, const ChosenPlan& chosen,
                         const plan::Budgets& budgets) {
  const plan::Need need(chosen.plan);
  if (need.device_bytes > budgets.device_bytes) {
    fail(ErrorKind::does_not_fit, "the device tier needs {} ({}), but {} allows {}: raise it{}",
         format_bytes(need.device_bytes), chosen.placement, what.basis.device_budget_source,
         format_bytes(budgets.device_bytes), ways_out(what, &plan::Need::device_bytes, need));
  }
  if (need.fits(budgets)) {
    const DiskNeed disk(what, chosen);
    fail(ErrorKind::does_not_fit, "{} {} on disk ({}), {}",
         what.basis.store_parameter_bytes
             ? "beside the store that is there, the inputs of blocks need"
             : "the state needs",
         format_bytes(disk.bytes), chosen.placement, disk.limit.advice);
  }
  fail(ErrorKind::does_not_fit,
       "the run needs {} of RAM ({}), but {} allows {}: raise --host_memory{}",
       format_bytes(chosen.process_bytes), chosen.placement, chosen.budget_source,
       format_bytes(chosen.budget_bytes), ways_out(what, &plan::Need::process_bytes, need));
}

/// A candidate that comes later in their order must take at most this share of a step's time to be
/// taken instead.
constexpr double kWorthIt = 0.99;

/// Makes the candidates' plans, fills them up and keeps the best one, see `keep_better`.
class Search {
 public:
  Search(const PlanInput& what, const plan::Budgets& budgets)
      : what_(what), budgets_(budgets), rates_(with_assumed(profile_of(what.settings))) {}

  ChosenPlan run() {
    const ParameterSize size{what_.layout.elements(), size_of(what_.model.compute_dtype())};
    const std::vector<Candidate> list = candidates(what_.settings, what_.basis, size);
    process_bytes_.assign(list.size(), 0);
    for (std::size_t index = 0; index < list.size(); ++index) {
      if (is_needed(list[index])) try_candidate(list, index);
    }
    if (fastest_) {
      if (fitting_ > 1) {
        fastest_->placement += fmt::format(", of {} that fit, by {}", fitting_, rates_source());
      }
      return std::move(*fastest_);
    }
    require(nearest_.has_value(), ErrorKind::internal, "the settings allow no placement at all");
    refuse(what_, *nearest_, budgets_);
  }

 private:
  static plan::HardwareProfile profile_of(const Settings& settings) {
    const std::string& profile = settings.placement.profile;
    return profile.empty() ? plan::HardwareProfile{} : find_profile(profile);
  }

  /// Whose figures `rates_` are, for people.
  [[nodiscard]] std::string rates_source() const {
    const std::string& profile = what_.settings.placement.profile;
    if (profile.empty()) return "assumed figures";
    const bool is_whole = profile_of(what_.settings).name == rates_.name;
    return fmt::format("--profile {}{}", profile, is_whole ? "" : " and assumed figures");
  }

  /// Not where it uses drives, which wear, or has parameters on disk, and one that fits does
  /// without. Nor where parameters fit on the device with one micro-batch, which fetches nothing
  /// again and again: what leaves the device then moves as much as what takes its place would. Nor
  /// where all is on the device, or what comes later has more tasks than a plan is made of.
  [[nodiscard]] bool is_needed(const Candidate& candidate) const {
    if (!fastest_) return true;
    const plan::PlanRequest& found = fastest_->plan.request;
    const bool moves_nothing = found.placement.parameters == Tier::device &&
                               found.placement.state == Tier::device &&
                               found.placement.boundaries == Tier::device;
    if (moves_nothing) return false;
    if (candidate.uses_disk() && !fastest_->plan.uses_disk()) return false;
    if (found.micro_batches == 1 && found.placement.parameters == Tier::device) return false;
    if (candidate.placement.parameters == Tier::disk && found.placement.parameters != Tier::disk) {
      return false;
    }
    return plan::is_countable(what_.model, what_.layout, request_for(what_, candidate.placement));
  }

  [[nodiscard]] plan::Plan make(const plan::Placement& placement, int slots_min = 1) const {
    plan::PlanRequest request = request_for(what_, placement);
    request.chunk_slots = std::max(request.chunk_slots, slots_min);
    return plan::draft_plan(what_.model, what_.layout, request);
  }

  void try_candidate(const std::vector<Candidate>& list, std::size_t index) {
    const Candidate& candidate = list[index];
    plan::Plan begun = make(candidate.placement);
    const plan::Need need(begun);
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

  [[nodiscard]] plan::Plan fill(plan::Plan plan, const Candidate& candidate, Order order) const {
    const Filling filling{what_.model, what_.layout, budgets_,
                          [&](const plan::Placement& placement) { return make(placement); }};
    const plan::Need need(plan);
    const bool fits = need.fits(budgets_);
    const bool parameters_too = fits && candidate.fills_parameters;
    if (parameters_too && order == Order::parameters_first) fill_parameters(plan, filling);
    if (fits && candidate.fills_boundaries) fill_boundaries(plan, filling);
    if (parameters_too && order == Order::boundaries_first) fill_parameters(plan, filling);
    const bool may_fit = !what_.basis.device_is_ram && need.device_bytes <= budgets_.device_bytes;
    if ((fits || may_fit) && candidate.fills_state) fill_state(plan, filling);
    if (what_.settings.placement.optimizer.buffer_count == 0 && plan::Need(plan).fits(budgets_)) {
      plan::Plan wide = make(plan.request.placement, kChunkSlotsMax);
      if (plan::Need(wide).fits(budgets_)) return wide;
    }
    return plan;
  }

  /// Takes a plan if it fits and is the best so far, or if nothing has fitted and it is nearest.
  void offer(plan::Plan plan) {
    const PlacementSettings& settings = what_.settings.placement;
    ChosenPlan chosen;
    chosen.plan = std::move(plan);
    chosen.budget_bytes = budgets_.process_bytes;
    chosen.budget_source = budgets_.source;
    const plan::Need need(chosen.plan);
    chosen.process_bytes = need.process_bytes;
    const bool automatic = settings.optimizer.device == Placement::automatic ||
                           settings.parameters.device == Placement::automatic;
    const bool moved =
        settings.activations.device == Placement::automatic && !chosen.plan.boundary_home.empty();
    chosen.placement = describe(chosen.plan, automatic || moved);
    if (need.fits(budgets_)) {
      chosen.store_bytes = store_bytes(settings, chosen.plan);
      if (DiskNeed(what_, chosen).fits()) {
        keep_better(std::move(chosen));
        return;
      }
    }
    const auto excess = need.excess(budgets_);
    if (nearest_ && plan::Need(nearest_->plan).excess(budgets_) < excess) return;
    nearest_ = std::move(chosen);
  }

  /// A plan that fits: one without drives rather than one with them, else the faster one.
  void keep_better(ChosenPlan chosen) {
    plan::complete(chosen.plan);
    ++fitting_;
    if (fastest_) {
      if (!fastest_seconds_) fastest_seconds_ = seconds_of(fastest_->plan);
      const double seconds = seconds_of(chosen.plan);
      const bool spares_drives = fastest_->plan.uses_disk() && !chosen.plan.uses_disk();
      if (!spares_drives && seconds > kWorthIt * *fastest_seconds_) return;
      fastest_seconds_ = seconds;
    }
    fastest_ = std::move(chosen);
  }

  [[nodiscard]] double seconds_of(const plan::Plan& plan) const {
    return plan::simulate(
               plan.training, rates_,
               {.compute = what_.model.compute_dtype(), .steps_in_flight = plan::kStepsInFlight})
        .step_seconds;
  }

  const PlanInput what_;
  const plan::Budgets& budgets_;
  const plan::HardwareProfile rates_;
  std::vector<std::uint64_t> process_bytes_;  ///< of the candidates that were tried
  std::optional<ChosenPlan> nearest_;         ///< to what fits
  std::optional<ChosenPlan> fastest_;         ///< of those that fit
  std::optional<double> fastest_seconds_;     ///< known once there is another to compare it with
  int fitting_ = 0;
};

}  // namespace

DType choose_dtype(const Settings& settings, bool native_bf16) {
  const bool split = settings.optimizer.state.master == optim::MasterFormat::split;  // with bf16
  const DType dtype =
      settings.numerics.dtype.value_or(split || native_bf16 ? DType::bf16 : DType::f32);
  require(dtype != DType::f16, ErrorKind::usage,
          "fp16 is for GPUs without bf16, and this run is on the host device: use --bf16 or leave "
          "the type to Terrace");
  return dtype;
}

model::BatchShape micro_batch_shape(const Settings& settings, const model::Config& config) {
  const std::int64_t longest = config.max_position_embeddings;
  const std::int64_t length =
      settings.data.max_length.value_or(std::min<std::int64_t>(1024, longest));
  require(length <= longest, ErrorKind::usage,
          "max_length is {}, but the model was made for {} positions: lower --max_length", length,
          longest);
  const std::int64_t rows = settings.batch.micro.value_or(1);
  require(rows <= kMicroBatchTokensMax / length, ErrorKind::usage,
          "a micro-batch of {} of {} tokens is more than the {} tokens that one may have: "
          "lower --per_device_train_batch_size and raise --gradient_accumulation_steps",
          counted(rows, "sequence"), length, kMicroBatchTokensMax);
  return {rows, length};
}

ChosenPlan choose_plan(const Settings& settings, const model::Model& model,
                       const shard::Layout& layout, const PlanBasis& basis) {
  // What filled most of the free RAM when the store was made may find a little less of it now.
  const plan::Budgets budgets =
      budgets_of(settings.placement, basis.store_parameter_bytes ? 1 : kDefaultBudgetShare);
  return Search({settings, model, layout, basis}, budgets).run();
}

std::string memory_table(const plan::Plan& plan) {
  std::string text;
  for (const Tier tier : {Tier::device, Tier::host, Tier::disk}) {
    text += fmt::format("  {:<8}{:>12}\n", memory::name_of(tier),
                        format_bytes(plan.reserved_bytes(tier)));
    for (const memory::PurposeBytes& row : plan.memory.by_purpose()) {
      if (row.tier != tier || row.bytes == 0) continue;
      const std::uint64_t bytes = plan.reserved_bytes(row);
      text += fmt::format("          {:>12}  {}{}\n", format_bytes(bytes), row.purpose,
                          bytes > row.bytes ? " (two extents)" : "");
    }
  }
  std::uint64_t process = 0;
  std::string rows;
  for (const plan::ProcessBytes& row : plan::process_rows(plan)) {
    process += row.bytes;
    rows += fmt::format("          {:>12}  {}\n", format_bytes(row.bytes), row.purpose);
  }
  text += fmt::format("  {:<8}{:>12}  at most\n{}", "process", format_bytes(process), rows);
  text += fmt::format("  {:<8}{:>12}  {}host and process\n", "RAM",
                      format_bytes(plan::Need(plan).process_bytes),
                      plan.request.device_is_ram ? "device, " : "");
  return text;
}

}  // namespace terrace::config
