#include "step_loop.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/runtime/run_trace.h"
#include "terrace/train/interrupt.h"

namespace terrace::train {

StepLoop::StepLoop(const RunStart& start, StateKeeper& keeper, const TrainContext& context,
                   Watch& watch)
    : start_(start),
      keeper_(keeper),
      context_(context),
      watch_(watch),
      history_(start.beginning.state.log_history) {
  const Activity preparing(watch_, "preparing the lanes", {.to_the_end = true});
  if (start_.traced.first <= start_.traced.last) {
    trace_ = runtime::make_trace(start_.chosen.plan, start_.traced);
  }
  executor_ = std::make_unique<runtime::Executor>(
      keeper_.run_context(), runtime::LaneOptions{trace_.get(), start_.lane_rates()},
      start_.optimizer_setup(), [this](const runtime::StepOutcome& outcome) {
        return commit_state(outcome, log_->commit(row_of(outcome)));
      });
  const checkpoint::TrainerState& state = start_.beginning.state;
  executor_->restore({state.adam_step, state.skipped_steps, state.skipped_in_a_row});
  if (!keeper_.commits_steps() || keeper_.store()->committed_step()) return;
  const std::string first =
      checkpoint::to_json(start_.trainer_state(keeper_.done(), executor_->counter()));
  keeper_.store()->pages().commit(Version(keeper_.done().value), std::as_bytes(std::span(first)));
}

int StepLoop::run() {
  open_log();
  write_record();
  try {
    make_steps();
  } catch (const Stopped& stopped) {
    return stop_for_signal(stopped.signal());
  }
  return complete();
}

int StepLoop::complete() {
  context_.terminal.finish();
  log_->sync();  // no commit will carry the last rows any more
  if (start_.settings.cadence.save_steps > 0) save_checkpoint();
  keeper_.save_model(contents());
  write_record(true);
  write_trace();
  release();
  return 0;
}

checkpoint::CheckpointContents StepLoop::contents() const {
  checkpoint::TrainerState state = start_.trainer_state(keeper_.done(), executor_->counter());
  state.log_history = history_;
  return start_.contents(std::move(state));
}

void StepLoop::save_checkpoint(bool to_the_end) {
  if (keeper_.is_saved()) return;
  log_->sync();  // a checkpoint carries no rows
  keeper_.save_checkpoint(contents(), to_the_end);
}

void StepLoop::release() {
  executor_.reset();
  keeper_.release();
}

void StepLoop::make_steps() {
  if (lacks_evaluation()) evaluate_step();
  last_finish_us_ = now_us();
  for (Step step(keeper_.done().value + 1); step.value <= start_.total_steps; ++step.value) {
    watch_.stop_if_asked();
    post(step);
    if (start_.is_boundary(step)) {
      while (executor_->steps_unfinished() > 0) finish();
      // Where each step is committed a stop needs no checkpoint.
      if (start_.saves_at(step)) save_checkpoint(!keeper_.commits_steps());
      last_finish_us_ = now_us();
    } else if (executor_->steps_unfinished() == plan::kStepsInFlight) {
      finish();
    }
  }
  while (executor_->steps_unfinished() > 0) finish();
}

void StepLoop::post(Step step) {
  runtime::StepInputs inputs;
  inputs.step = step;
  const data::SampleRange samples = start_.samples_of(step);
  for (int micro = 0; micro < static_cast<int>(start_.batch.accumulation); ++micro) {
    inputs.target_tokens +=
        fill(executor_->host_batch(micro), start_.batch.samples(samples, micro, 0));
  }
  executor_->post_step(inputs);
  if (time_left_.seconds(1) == 0 && !first_step_) {
    first_step_.emplace(watch_, fmt::format("step {}, the first one", step.value),
                        ActivityOptions{.to_the_end = true});
  }
  keeper_.answer_signals(fmt::format("step {}", step.value),
                         time_left_.seconds(executor_->steps_unfinished()));
}

std::int64_t StepLoop::fill(const runtime::Executor::HostBatch& batch, data::SampleRange samples) {
  try {
    return start_.data.training->fill(samples, batch.tokens, batch.targets);
  } catch (const Error& error) {
    stop_for_data(error);
  }
}

void StepLoop::finish() {
  const runtime::StepOutcome outcome = finish_step();
  if (outcome.skip) answer_skip(outcome);
}

runtime::StepOutcome StepLoop::finish_step() {
  const runtime::StepOutcome outcome = executor_->finish_step();
  first_step_.reset();
  keeper_.set_done(outcome.step);
  const double seconds = seconds_since(last_finish_us_);
  last_finish_us_ = now_us();
  report(outcome, seconds);
  if (start_.evaluates_at(outcome.step)) evaluate_step();
  return outcome;
}

void StepLoop::answer_skip(const runtime::StepOutcome& skipped) {
  const bool first_loss = !std::isfinite(skipped.loss) && skipped.skipped_in_a_row == 1;
  if (!first_loss && !skipped.gives_up) return;
  runtime::StepOutcome last = skipped;
  while (executor_->steps_unfinished() > 0) last = finish_step();
  keeper_.require_held_weights(
      ErrorKind::numerics, fmt::format("{} of step {} is not finite, and neither are the weights",
                                       skipped.nonfinite, skipped.step.value));
  const runtime::StepOutcome& end = skipped.gives_up ? skipped : last;
  if (!end.gives_up) return;
  const std::string good = keeper_.last_good();
  fail(ErrorKind::numerics,
       "{} in a row {} not finite, the last one in {}, and all weights are finite: training stops "
       "after {}; {}, with a lower learning rate.",
       counted(end.skipped_in_a_row, "step"), end.skipped_in_a_row == 1 ? "is" : "are",
       end.nonfinite, counted(end.updates, "update"),
       good.empty() ? std::string("nothing is saved yet, start again")
                    : fmt::format("go on from {}", good));
}

std::string StepLoop::keep_steps() {
  while (executor_->steps_unfinished() > 0) finish();
  context_.terminal.finish();
  write_trace();
  if (keeper_.commits_steps()) {
    return fmt::format("after step {}, which is committed in {}; go on with --resume auto",
                       keeper_.done().value, keeper_.store()->place());
  }
  if (keeper_.done().value == 0) return "before the first step: nothing to save";
  save_checkpoint();
  return fmt::format("after step {}, which is saved; go on with --resume auto",
                     keeper_.done().value);
}

void StepLoop::end_early() {
  write_record();
  if (!keeper_.commits_steps()) release();  // nobody can go on with a store that has no commit
}

int StepLoop::stop_for_signal(int signal) {
  const std::string where = keep_steps();
  context_.log.info("stopped by signal {} {}", signal, where);
  end_early();
  return exit_code_of_signal(signal);
}

void StepLoop::stop_for_data(const Error& error) {
  const std::string where = keep_steps();
  end_early();
  fail(error.kind(), "{}; stopped {}", error.what(), where);
}

}  // namespace terrace::train
