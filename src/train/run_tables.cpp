#include "run_tables.h"

#include <fmt/core.h>

#include <algorithm>

#include "terrace/config/facts.h"
#include "terrace/core/units.h"
#include "terrace/plan/need.h"
#include "terrace/train/report.h"

namespace terrace::train {
namespace {

std::string when_updated(const plan::Plan& plan) {
  const std::string early = "under backward, each chunk when its gradient is final";
  const std::string late = "under the next forward, when all gradients are known to be finite";
  if (!plan.updates_before_decision) return late;
  const auto on_disk = std::ranges::count(plan.parameter_tier, memory::Tier::disk);
  if (on_disk == std::ssize(plan.parameter_tier)) return early;
  return fmt::format("of parameters on disk {}; of the others {}", early, late);
}

std::string describe_data(const RunStart& start) {
  const data::Loader& training = *start.data.training;
  const std::int64_t validated =
      start.data.validation ? start.data.validation->samples_per_epoch() : 0;
  std::string text =
      fmt::format("{} tokens, {} of {} an epoch, {} for validation",
                  format_count(static_cast<std::uint64_t>(start.data.dataset->tokens())),
                  counted(training.samples_per_epoch(), "sequence"), start.length,
                  validated > 0 ? std::to_string(validated) : "none");
  std::int64_t used = 1 + training.sequences().targets();  // the first token is no target
  const bool is_split = start.data.validation && start.settings.data.eval_files.empty();
  if (is_split) used += start.data.validation->sequences().targets();
  if (const std::int64_t left = start.data.dataset->tokens() - used; left > 0) {
    text += fmt::format(", {} at the end left over", counted(left, "token"));
  }
  return text;
}

std::string describe_steps(const RunStart& start) {
  const std::int64_t full = start.batch.samples_per_step();
  std::string text = fmt::format(
      "{} of {} ({} of {})", start.total_steps, counted(full, "sequence"),
      counted(start.batch.accumulation, "micro-batch", "micro-batches"), start.batch.micro_batch);
  const std::int64_t last = start.data.training->samples_per_epoch() % full;
  return last == 0 ? text : text + fmt::format(", the last of an epoch of {}", last);
}

}  // namespace

void print_memory(const RunStart& start, Log& log) {
  log.info("Memory\n{}", config::memory_table(start.chosen.plan));
}

void print_tables(const RunStart& start, Log& log) {
  const plan::Plan& plan = start.chosen.plan;
  const model::Model& model = *start.setup.model;
  std::vector<config::Fact> facts = {
      {"model", fmt::format("{}, {} parameters, {}", start.setup.source.name,
                            format_count(static_cast<std::uint64_t>(model.parameter_count())),
                            !start.beginning.starts_afresh()
                                ? fmt::format("state of step {} in {}", start.step().value,
                                              start.beginning.place())
                            : start.setup.source.is_preset() ? "random weights"
                                                             : "weights of the folder")},
      {"data", describe_data(start)},
      {"steps", describe_steps(start)},
      {"learning rate", start.schedule().describe()},
      {"device", fmt::format("{} ({})", start.setup.machine.device->name(),
                             start.setup.machine.device_reason)},
      {"kernels", start.setup.machine.ops->description()},
      {"threads", start.setup.machine.threads.describe()},
      {"placement", start.chosen.placement},
      {"updates", when_updated(plan)},
      {"RAM", fmt::format("{} of {} ({})", format_bytes(start.chosen.process_bytes),
                          format_bytes(start.chosen.budget_bytes), start.chosen.budget_source)},
      {"after a kill", plan.commits_every_step
                           ? "the run goes on at the last step: every step is committed on disk"
                           : "the run goes on at its last checkpoint"},
  };
  for (const config::Fact& fact : config::facts_of(start.settings)) {
    const bool known = std::ranges::any_of(
        facts, [&](const config::Fact& other) { return other.first == fact.first; });
    if (!known) facts.push_back(fact);
  }
  log.info("{}", settings_table(facts));
  print_memory(start, log);
  for (const std::string& line : config::schedule_warnings(start.schedule(), start.total_steps)) {
    log.warning("{}", line);
  }
  if (plan.uses_disk()) {
    log.info("each step reads {} from disk and writes {}; 1,000 steps write {}",
             format_bytes(plan::bytes_per_step(plan, plan::Lane::disk_read)),
             format_bytes(plan::bytes_per_step(plan, plan::Lane::disk_write)),
             format_bytes(1000 * plan::bytes_per_step(plan, plan::Lane::disk_write)));
  }
}

}  // namespace terrace::train
