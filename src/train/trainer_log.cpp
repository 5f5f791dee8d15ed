#include <algorithm>
#include <cmath>

#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/train/inference.h"
#include "terrace/train/watch.h"
#include "trainer.h"

// What a run writes of each step: the rows of metrics.jsonl and the history in trainer_state.json.

namespace terrace::train {

void Trainer::open_log() {
  const std::int64_t listed = history_.empty() ? 0 : history_.back().step;
  log_ = std::make_unique<StepLog>(output_.path() / "metrics.jsonl", chosen_.plan, done_.value,
                                   beginning_.state.rows, listed - 1);
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

checkpoint::StepRow Trainer::row_of(const runtime::StepOutcome& outcome) const {
  return {.step = outcome.step.value,
          .epoch = epoch_at(outcome.step),
          .loss = outcome.loss,
          .grad_norm = outcome.grad_norm,
          .learning_rate = outcome.learning_rate,
          .tokens = samples_of(outcome.step).count * length_,
          .skipped = outcome.skipped,
          .nonfinite = outcome.nonfinite,
          .eval_loss = {}};
}

bool Trainer::shows(Step step) const {
  const std::int64_t every = settings_.cadence.logging_steps;
  return every > 0 && (step.value % every == 0 || step.value == total_steps_);
}

void Trainer::list(const checkpoint::StepRow& row) {
  const bool is_listed = !history_.empty() && history_.back().step >= row.step;
  if (!is_listed && (shows(Step(row.step)) || row.eval_loss)) {
    history_.push_back({row.step, row.epoch, {}});
    if (shows(Step(row.step))) {
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

bool Trainer::lacks_evaluation() const {
  return log_->last() && !log_->last()->eval_loss && evaluates_at(done_);
}

void Trainer::evaluate_step() {
  try {
    Activity evaluating(watch_, fmt::format("evaluating after step {}", done_.value),
                        {.noun = "sequence"});
    const double loss =
        evaluate(*executor_, *data_.validation, batch_.micro_batch, evaluating.progress()).loss;
    log_->add_evaluation(loss);
    list(*log_->last());
    if (std::isfinite(loss)) {
      context_.log.info("step {}: validation loss {:.4f} nats a token", done_.value, loss);
    } else {
      context_.log.warning("step {}: the validation loss is not finite", done_.value);
    }
  } catch (const Stopped&) {
    // What asks to stop is answered at the end of the step.
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
    stop_for_data(error);
  }
}

}  // namespace terrace::train
