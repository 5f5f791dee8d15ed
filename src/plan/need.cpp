#include "terrace/plan/need.h"

#include "terrace/core/units.h"

namespace terrace::plan {
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

std::uint64_t traced_bytes(const Plan& plan) {
  const std::int64_t steps = plan.request.traced_steps;
  if (steps == 0) return 0;
  const std::uint64_t tasks = plan.training.tasks.size();
  const StepRange kept = traceable(plan, {1, steps});
  const auto spans = static_cast<std::uint64_t>(kept.last) * tasks;
  return spans * (sizeof(Trace::Span) + kWrittenSpanBytes) + tasks * kRelationBytes;
}

/// A million spans: as a file 300 to 600 MB, about the most that a browser's viewer opens.
constexpr std::uint64_t kTraceBytesMax = 64 * kMiB;

}  // namespace

std::vector<ProcessBytes> process_rows(const Plan& plan) {
  const std::uint64_t tasks = plan.training.tasks.size() + plan.evaluation.tasks.size();
  const auto threads = static_cast<std::uint64_t>(plan.request.threads);
  std::vector<ProcessBytes> rows = {
      {"program and libraries", kProgramBytes},
      {"threads", threads * kThreadBytes},
      {"tasks of a step", round_up(tasks * kTaskBytes, kTaskBytesUnit)}};
  if (const std::uint64_t bytes = traced_bytes(plan); bytes > 0) rows.push_back({"trace", bytes});
  return rows;
}

Need::Need(const Plan& plan)
    : process_bytes(plan.memory.bytes(memory::Tier::host)),
      device_bytes(plan.memory.bytes(memory::Tier::device)) {
  if (plan.request.device_is_ram) process_bytes += device_bytes;
  for (const ProcessBytes& row : process_rows(plan)) process_bytes += row.bytes;
}

StepRange traceable(const Plan& plan, StepRange steps) {
  const std::uint64_t step_bytes = plan.training.tasks.size() * sizeof(Trace::Span);
  const auto most =
      static_cast<std::int64_t>(std::max(kTraceBytesMax / step_bytes, std::uint64_t{1}));
  return {steps.first, std::min(steps.last, steps.first + most - 1)};
}

std::uint64_t bytes_per_step(const Plan& plan, Lane lane) {
  std::uint64_t bytes = 0;
  for (const Task& task : plan.training.tasks) {
    if (task.lane == lane) bytes += task.bytes;
  }
  return bytes;
}

double boundary_share(const Plan& plan, Lane lane) {
  std::uint64_t bytes = 0;
  for (const Task& task : plan.training.tasks) {
    if (task.lane == lane && moves_boundary(task.kind)) bytes += task.bytes;
  }
  const std::uint64_t all = bytes_per_step(plan, lane);
  return all == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(all);
}

}  // namespace terrace::plan
