#include "terrace/config/planning.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "policy.h"
#include "terrace/config/budgets.h"
#include "terrace/config/drives.h"
#include "terrace/config/profile.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::config {
namespace {

using memory::Tier;

/// Far above what any machine computes at once, and low enough that its memory is soon added up.
constexpr std::int64_t kMicroBatchTokensMax = std::int64_t{1} << 22;

/// The change as flags, and what it would do.
std::string words_of(plan::Change change, const plan::PlanRequest& request) {
  using enum plan::Change;
  switch (change) {
    case use_drives:
      return "--swap DIR with a folder on an NVMe drive";
    case free_state:
      return "--offload_optimizer auto";
    case free_parameters:
      return "--offload_param auto";
    case free_activations:
      return "--offload_activations auto";
    case shard_parameters:
      return "--zero_stage 3";
    case one_row:
      return "--per_device_train_batch_size 1";
    case half_length:
      return fmt::format("--max_length {}", plan::half_length(request));
    case no_clipping:
      return "--max_grad_norm 0";
    case fewer_chunk_slots:
      break;
  }
  return fmt::format("--set zero_optimization.offload_optimizer.buffer_count={}",
                     plan::kChunkSlots);
}

/// The end of a sentence; empty when nothing helps.
std::string words_of(const plan::Refusal& refusal) {
  std::string text;
  for (const plan::Relief& relief : refusal.reliefs) {
    text +=
        fmt::format("{}{} takes {}", text.empty() ? ", or lower the need: " : ", ",
                    words_of(relief.change, refusal.nearest.request), format_bytes(relief.bytes));
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
  DiskNeed(const PlanInput& what, const plan::Plan& plan)
      : bytes(store_bytes(what.settings.placement, plan)) {
    OnDrives found{.freed_bytes = what.basis.freed_disk_bytes};
    if (what.basis.store_parameter_bytes) {
      found.held_bytes = bytes - scratch_bytes(plan);
      bytes = scratch_bytes(plan);
    }
    limit = disk_limit(what.settings.placement, found);
  }

  [[nodiscard]] bool fits() const { return bytes <= limit.bytes; }

  std::uint64_t bytes;
  DiskLimit limit;
};

/// Whether some of what the plan has placed was left to it.
bool is_automatic(const PlacementSettings& settings, const plan::Plan& plan) {
  return settings.optimizer.device == Placement::automatic ||
         settings.parameters.device == Placement::automatic ||
         (settings.activations.device == Placement::automatic && !plan.boundary_home.empty());
}

/// Says why not even the plan that came nearest fits, and what would help.
[[noreturn]] void refuse(const PlanInput& what, const plan::Refusal& refusal,
                         const Budgets& budgets) {
  const plan::Plan& nearest = refusal.nearest;
  const plan::Need need(nearest);
  const std::string placement = describe(nearest, is_automatic(what.settings.placement, nearest));
  switch (refusal.lack) {
    case plan::Refusal::Lack::device:
      fail(ErrorKind::does_not_fit, "the device tier needs {} ({}), but {} allows {}: raise it{}",
           format_bytes(need.device_bytes), placement, what.basis.device_budget_source,
           format_bytes(budgets.device_bytes), words_of(refusal));
    case plan::Refusal::Lack::drives: {
      const DiskNeed disk(what, nearest);
      fail(ErrorKind::does_not_fit, "{} {} on disk ({}), {}",
           what.basis.store_parameter_bytes
               ? "beside the store that is there, the inputs of blocks need"
               : "the state needs",
           format_bytes(disk.bytes), placement, disk.limit.advice);
    }
    case plan::Refusal::Lack::process:
      break;
  }
  fail(ErrorKind::does_not_fit,
       "the run needs {} of RAM ({}), but {} allows {}: raise --host_memory{}",
       format_bytes(need.process_bytes), placement, budgets.source,
       format_bytes(budgets.process_bytes), words_of(refusal));
}

/// Rates of every lane, and whose figures they are, for people.
struct SourcedRates {
  explicit SourcedRates(const std::string& profile) {
    const plan::HardwareProfile found =
        profile.empty() ? plan::HardwareProfile{} : find_profile(profile);
    rates = with_assumed(found);
    source = profile.empty() ? "assumed figures"
                             : fmt::format("--profile {}{}", profile,
                                           found.name == rates.name ? "" : " and assumed figures");
  }

  plan::HardwareProfile rates;
  std::string source;
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
  const PlanInput what{settings, model, layout, basis};
  // What filled most of the free RAM when the store was made may find a little less of it now.
  const Budgets budgets =
      budgets_of(settings.placement, basis.store_parameter_bytes ? 1 : kDefaultBudgetShare);
  const SourcedRates rates(settings.placement.profile);
  plan::Policy policy = policy_of(what, budgets);
  policy.rates = rates.rates;
  policy.fits_drives = [&](const plan::Plan& plan) { return DiskNeed(what, plan).fits(); };
  auto found = plan::search(model, layout, policy);
  if (const auto* refusal = std::get_if<plan::Refusal>(&found)) refuse(what, *refusal, budgets);
  auto& choice = std::get<plan::Choice>(found);
  ChosenPlan chosen;
  chosen.plan = std::move(choice.plan);
  chosen.placement = describe(chosen.plan, is_automatic(settings.placement, chosen.plan));
  if (choice.fitting > 1) {
    chosen.placement += fmt::format(", of {} that fit, by {}", choice.fitting, rates.source);
  }
  chosen.budget_bytes = budgets.process_bytes;
  chosen.budget_source = budgets.source;
  chosen.process_bytes = plan::Need(chosen.plan).process_bytes;
  chosen.store_bytes = store_bytes(settings.placement, chosen.plan);
  return chosen;
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
