#include "budgets.h"

#include <fmt/core.h>

#include "run_trace.h"
#include "terrace/core/container.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/engine/planning.h"

namespace terrace::engine {
namespace {

// What a process takes beside the regions of its plan, each an upper bound, from the peaks of runs
// of `tiny` to `llama-1b` with state and parameters on each tier, and of up to 4096 micro-batches.

/// Code and libraries, what these keep, and the buffers of files: 24 to 36 MiB.
constexpr std::uint64_t kProgramBytes = 44 * kMiB;
/// A core has a thread of OpenMP's and one or two of oneTBB's, each with a stack and a heap.
constexpr std::uint64_t kThreadBytes = kMiB;
/// A task is planned, simulated, and bound to memory and an event: 900 to 1150 bytes.
constexpr std::uint64_t kTaskBytes = 1280;
/// Placements that differ by few tasks are compared by their regions alone.
constexpr std::uint64_t kTaskBytesUnit = kMiB;
/// What a span takes beside itself while the trace is written, and a task's arrows: 170 bytes.
constexpr std::uint64_t kWrittenSpanBytes = 192;
constexpr std::uint64_t kRelationBytes = 256;

std::uint64_t traced_bytes(const plan::Plan& plan) {
  const std::int64_t steps = plan.request.traced_steps;
  if (steps == 0) return 0;
  const std::uint64_t tasks = plan.training.tasks.size();
  const StepRange kept = traceable(plan, {1, steps});
  const auto spans = static_cast<std::uint64_t>(kept.last) * tasks;
  return spans * (sizeof(Trace::Span) + kWrittenSpanBytes) + tasks * kRelationBytes;
}

}  // namespace

Budgets budgets_of(const PlacementSettings& settings, double share) {
  Budgets budgets;
  if (const auto& budget = settings.host_memory) {
    budgets.process_bytes = budget->of(static_cast<std::uint64_t>(total_memory().value));
    budgets.source = "--host_memory";
  } else {
    const Limit free = available_memory();
    budgets.process_bytes = static_cast<std::uint64_t>(free.value * share);
    budgets.source = fmt::format("{:.0f} % of {}", share * 100, free.source);
  }
  if (const auto& limit = settings.device_memory) {
    budgets.device_bytes = limit->of(static_cast<std::uint64_t>(total_memory().value));
  }
  return budgets;
}

std::vector<ProcessBytes> process_rows(const plan::Plan& plan) {
  const std::uint64_t tasks = plan.training.tasks.size() + plan.evaluation.tasks.size();
  const auto threads = static_cast<std::uint64_t>(plan.request.threads);
  std::vector<ProcessBytes> rows = {
      {"program and libraries", kProgramBytes},
      {"threads", threads * kThreadBytes},
      {"tasks of a step", round_up(tasks * kTaskBytes, kTaskBytesUnit)}};
  if (const std::uint64_t bytes = traced_bytes(plan); bytes > 0) rows.push_back({"trace", bytes});
  return rows;
}

Need::Need(const plan::Plan& plan)
    : process_bytes(plan.memory.bytes(memory::Tier::host)),
      device_bytes(plan.memory.bytes(memory::Tier::device)) {
  if (plan.request.device_is_ram) process_bytes += device_bytes;
  for (const ProcessBytes& row : process_rows(plan)) process_bytes += row.bytes;
}

void require_free_ram(const Need& need, const Budgets& budgets) {
  const Limit free = available_memory();
  require(static_cast<double>(need.process_bytes) <= free.value, ErrorKind::does_not_fit,
          "{} of RAM are needed and {} allows them, but {} are free ({}): lower it, so that state "
          "goes to a slower tier, or end what holds the rest",
          format_bytes(need.process_bytes), budgets.source,
          format_bytes(static_cast<std::uint64_t>(free.value)), free.source);
}

}  // namespace terrace::engine
