#include <algorithm>
#include <cmath>
#include <utility>

#include "metrics.h"
#include "step_loop.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/train/inference.h"

// What a run writes of each step and of itself: the rows of metrics.jsonl, the history in
// trainer_state.json, the line of progress, run.json and the trace.

namespace terrace::train {

using plan::Lane;

namespace {

/// The lane that was most at fault when the compute lane waited, and that share of the step; empty
/// where it is not worth a word.
std::string waited_for(const runtime::StepTimes& times, double step_seconds) {
  const auto most = std::ranges::max_element(times.waited_us);
  const double share = static_cast<double>(*most) * 1e-6 / step_seconds;
  if (share < 0.05) return "";
  const auto lane = static_cast<Lane>(most - times.waited_us.begin());
  return fmt::format("{} {:.0f}%", name_of(lane), share * 100);
}

}  // namespace

void StepLoop::report(const runtime::StepOutcome& outcome, double step_seconds) {
  const checkpoint::StepRow row = row_of(outcome);
  const double flops = start_.flops_per_step *
                       static_cast<double>(start_.samples_of(outcome.step).count) /
                       static_cast<double>(start_.batch.samples_per_step());
  log_->write(row, {executor_->last_times(), step_seconds, flops});
  list(row);
  time_left_.add_step(step_seconds);
  if (outcome.skip) {
    context_.log.warning("step {} is skipped: {} is not finite", outcome.step.value,
                         outcome.nonfinite);
  }
  if (!start_.shows(outcome.step)) return;
  context_.terminal.progress(progress_line(
      {outcome.step.value, start_.total_steps, row.epoch, outcome.loss, outcome.grad_norm,
       outcome.learning_rate, static_cast<double>(row.tokens) / step_seconds, step_seconds,
       waited_for(executor_->last_times(), step_seconds),
       time_left_.seconds(start_.total_steps - outcome.step.value)}));
}

void StepLoop::open_log() {
  const std::int64_t listed = history_.empty() ? 0 : history_.back().step;
  log_ = std::make_unique<StepLog>(start_.output.path() / "metrics.jsonl", start_.chosen.plan,
                                   keeper_.done().value, start_.beginning.state.rows, listed - 1);
  const checkpoint::SettledRows& settled = log_->settled();
  if (settled.dropped > 0) {
    context_.log.info("{} of later steps dropped from metrics.jsonl",
                      counted(settled.dropped, "row"));
  }
  if (settled.restored > 0) {
    context_.log.info(
        "{} of committed steps, lost when the run ended, written again to metrics.jsonl",
        counted(settled.restored, "row"));
  }
  for (const checkpoint::StepRow& row : settled.rows) list(row);
}

checkpoint::StepRow StepLoop::row_of(const runtime::StepOutcome& outcome) const {
  return {.step = outcome.step.value,
          .epoch = start_.epoch_at(outcome.step),
          .loss = outcome.loss,
          .grad_norm = outcome.grad_norm,
          .learning_rate = outcome.learning_rate,
          .tokens = start_.samples_of(outcome.step).count * start_.length,
          .skipped = outcome.skipped,
          .nonfinite = outcome.nonfinite,
          .eval_loss = {}};
}

void StepLoop::list(const checkpoint::StepRow& row) {
  const bool is_listed = !history_.empty() && history_.back().step >= row.step;
  if (!is_listed && (start_.shows(Step(row.step)) || row.eval_loss)) {
    history_.push_back({row.step, row.epoch, {}});
    if (start_.shows(Step(row.step))) {
      history_.back().values = {
          {"loss", row.loss}, {"grad_norm", row.grad_norm}, {"learning_rate", row.learning_rate}};
    }
  }
  if (!row.eval_loss || history_.back().step != row.step) return;
  auto& values = history_.back().values;
  const bool has_loss =
      std::ranges::any_of(values, [](const auto& value) { return value.first == "eval_loss"; });
  if (!has_loss) values.emplace_back("eval_loss", *row.eval_loss);
}

bool StepLoop::lacks_evaluation() const {
  return log_->last() && !log_->last()->eval_loss && start_.evaluates_at(keeper_.done());
}

void StepLoop::evaluate_step() {
  try {
    Activity evaluating(watch_, fmt::format("evaluating after step {}", keeper_.done().value),
                        {.noun = "sequence"});
    const double loss = evaluate(*executor_, *start_.data.validation, start_.batch.micro_batch,
                                 evaluating.progress())
                            .loss;
    log_->add_evaluation(loss);
    list(*log_->last());
    if (std::isfinite(loss)) {
      context_.log.info("step {}: validation loss {:.4f} nats a token", keeper_.done().value, loss);
    } else {
      context_.log.warning("step {}: the validation loss is not finite", keeper_.done().value);
    }
  } catch (const Stopped&) {
    // What asks to stop is answered at the end of the step.
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
    stop_for_data(error);
  }
}

std::string StepLoop::commit_state(const runtime::StepOutcome& outcome,
                                   std::vector<checkpoint::StepRow> rows) const {
  checkpoint::TrainerState state = start_.trainer_state(
      outcome.step, {outcome.updates, outcome.skipped, outcome.skipped_in_a_row});
  state.rows = std::move(rows);
  return checkpoint::to_json(state);
}

void StepLoop::write_record(bool finished) const {
  RunRecordContents record;
  record.run = start_.beginning.run;
  record.command = context_.command;
  record.device = fmt::format("{} ({})", start_.setup.machine.device->name(),
                              start_.setup.machine.device_reason);
  record.kernels = start_.setup.machine.ops->description();
  record.placement = start_.chosen.placement;
  record.threads = start_.setup.machine.threads.describe();
  if (const auto found = executor_->disk_capabilities()) {
    const io::Capabilities& can = *found;
    record.disk_engine =
        fmt::format("{}, {}, {}, reads and writes {}", can.driver,
                    can.direct ? "O_DIRECT" : "through the page cache",
                    can.registered ? "registered buffers" : "no registered buffers",
                    io::name_of(keeper_.store()->pages().phases()));
  }
  record.parameters = start_.setup.model->parameter_count();
  record.total_steps = start_.total_steps;
  record.finished = finished;
  record.fallbacks = context_.log.fallbacks();
  record.lost_lines = context_.terminal.losses();
  write_run_record(start_.output.path() / "run.json", start_.settings, start_.chosen.plan, record);
}

void StepLoop::write_trace() {
  // Stopped before the first step that is traced, there is nothing to write.
  if (!trace_ || keeper_.done().value < start_.traced.first) return;
  const Activity writing(watch_, "writing the trace", {.to_the_end = true});
  trace_->write(start_.settings.output.trace, 0);
  context_.log.info("trace of steps {} to {} in {}", start_.traced.first,
                    std::min(start_.traced.last, keeper_.done().value),
                    start_.settings.output.trace);
}

}  // namespace terrace::train
