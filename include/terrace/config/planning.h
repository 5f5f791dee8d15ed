#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "terrace/config/settings.h"
#include "terrace/core/log.h"
#include "terrace/plan/plan.h"

namespace terrace::config {

/// The dtype to compute in: what was asked for, else bf16 where matrix products have instructions
/// for it (`native_bf16`) or the state format needs it, else fp32. Errors: usage for fp16, which
/// the host device does not compute in.
[[nodiscard]] DType choose_dtype(const Settings& settings, bool native_bf16);

/// The batch of one micro-batch: rows and tokens a row. `settings.batch` is resolved.
/// Errors: usage, when a sequence is longer than the model was made for.
[[nodiscard]] model::BatchShape micro_batch_shape(const Settings& settings,
                                                  const model::Config& config);

/// A plan and how it came about.
struct ChosenPlan {
  plan::Plan plan;
  std::string placement;            ///< for the settings table: where state lives, and why
  std::uint64_t budget_bytes = 0;   ///< of host RAM for the whole process
  std::string budget_source;        ///< the flag, or the limit it was read from
  std::uint64_t process_bytes = 0;  ///< what the plan takes, and the program itself
  std::uint64_t store_bytes = 0;    ///< what its page store takes on the drives; 0: it has none
};

/// What is there already when a plan is made.
struct PlanBasis {
  /// Set when the run goes on with a store, which holds all of the optimizer's state: how many
  /// bytes of parameters it holds as well.
  std::optional<std::uint64_t> store_parameter_bytes = {};
  bool device_is_ram = true;  ///< as `PlanRequest::device_is_ram`
  int threads = 1;            ///< as `PlanRequest::threads`
  std::string device_budget_source = "--device_memory";
  /// What the run gives back on the drives of `--swap` before it makes its store.
  std::uint64_t freed_disk_bytes = 0;
};

/// Makes the plan that the settings ask for, by `plan::search`: what is `automatic` fills the
/// fastest tiers that the budgets allow, `--disk` and the free space of drives that are there among
/// them, and uses disks only if `--swap` names one. Candidates are compared by the figures of
/// `--profile`, and by assumed ones where it gives none.
/// Errors: does_not_fit, naming need and budget and the line that would make it fit.
[[nodiscard]] ChosenPlan choose_plan(const Settings& settings, const model::Model& model,
                                     const shard::Layout& layout, const PlanBasis& basis = {});

/// Bytes by tier and purpose, for people: one line each, the total first; then the process's own,
/// and the sum of what is RAM.
[[nodiscard]] std::string memory_table(const plan::Plan& plan);

}  // namespace terrace::config
