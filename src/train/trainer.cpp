#include "trainer.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "metrics.h"
#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/config/drives.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/file.h"
#include "terrace/runtime/run_trace.h"
#include "terrace/train/interrupt.h"

namespace terrace::train {

using plan::Lane;

int train(config::Settings settings, const TrainContext& context) {
  try {
    Trainer trainer(std::move(settings), context);
    try {
      return trainer.run();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::out_of_memory) trainer.print_memory();
      const std::string good = error.kind() == ErrorKind::io ? trainer.last_good() : "";
      if (!good.empty()) fail(ErrorKind::io, "{}; {} is safe", error.what(), good);
      throw;
    } catch (const std::bad_alloc&) {
      trainer.print_memory();
      throw;
    }
  } catch (const Stopped& stopped) {
    context.log.info("{}: no step was made, and what was saved before is as it was",
                     stopped.what());
    return exit_code_of_signal(stopped.signal());
  }
}

int Trainer::run() {
  print_tables();
  check_beginning();
  if (settings_.output.dry_run) {
    context_.log.info("dry run: everything but loading and the steps is done");
    return 0;
  }
  output_.make(beginning_.run);
  load();
  output_.clear();
  open_log();
  write_record();
  try {
    make_steps();
  } catch (const Stopped& stopped) {
    return stop_for_signal(stopped.signal());
  }
  return complete();
}

void Trainer::make_steps() {
  if (lacks_evaluation()) evaluate_step();
  last_finish_us_ = now_us();
  for (Step step(done_.value + 1); step.value <= total_steps_; ++step.value) {
    watch_.stop_if_asked();
    post(step);
    if (is_boundary(step)) {
      while (executor_->steps_unfinished() > 0) finish();
      // Where each step is committed a stop needs no checkpoint.
      if (saves_at(step)) save_checkpoint(!commits_steps());
      last_finish_us_ = now_us();
    } else if (executor_->steps_unfinished() == plan::kStepsInFlight) {
      finish();
    }
  }
  while (executor_->steps_unfinished() > 0) finish();
}

void Trainer::make_executor() {
  const runtime::OptimizerSetup optimizer = optimizer_setup();
  if (traced_.first <= traced_.last) trace_ = runtime::make_trace(chosen_.plan, traced_);
  executor_ = std::make_unique<runtime::Executor>(
      run_context(), runtime::LaneOptions{trace_.get(), lane_rates()}, optimizer,
      [this](const runtime::StepOutcome& outcome) {
        return commit_state(outcome, log_->commit(row_of(outcome)));
      });
  executor_->restore(counters_);
  if (commits_steps() && !store_->committed_step()) {
    runtime::StepOutcome start;
    start.step = done_;
    start.updates = counters_.updates;
    start.skipped = counters_.skipped;
    start.skipped_in_a_row = counters_.skipped_in_a_row;
    const std::string state = commit_state(start, {});
    store_->pages().commit(Version(done_.value), std::as_bytes(std::span(state)));
  }
}

bool Trainer::commits_steps() const { return store_ != nullptr && chosen_.plan.commits_every_step; }

int Trainer::complete() {
  context_.terminal.finish();
  log_->sync();  // no commit will carry the last rows any more
  if (settings_.cadence.save_steps > 0) save_checkpoint();
  save_model();
  write_record(true);
  write_trace();
  release();
  return 0;
}

void Trainer::release() {
  {
    const Activity freeing(watch_, "giving the memory back", {.to_the_end = true});
    executor_.reset();
    transfer_.reset();
    memory_.reset();
  }
  if (!store_) return;
  const Activity removing(
      watch_, "removing the store",
      {.total = config::store_bytes(settings_.placement, chosen_.plan), .to_the_end = true});
  store_->remove();
}

void Trainer::write_trace() {
  // Stopped before the first step that is traced, there is nothing to write.
  if (!trace_ || done_.value < traced_.first) return;
  const Activity writing(watch_, "writing the trace", {.to_the_end = true});
  trace_->write(settings_.output.trace, 0);
  context_.log.info("trace of steps {} to {} in {}", traced_.first,
                    std::min(traced_.last, done_.value), settings_.output.trace);
}

void Trainer::answer_signals(const std::string& doing, double seconds) {
  const std::string good = last_good();
  StopAnswer answer{good.empty() ? "nothing is saved yet" : good + " is safe", doing, seconds};
  if (!doing.empty() && !commits_steps()) {
    answer.then = "a checkpoint is saved";
    answer.then_seconds = save_seconds_;
  }
  watch_.answer(std::move(answer));
}

std::string Trainer::keep_steps() {
  while (executor_->steps_unfinished() > 0) finish();
  context_.terminal.finish();
  write_trace();
  if (commits_steps()) {
    return fmt::format("after step {}, which is committed in {}; go on with --resume auto",
                       done_.value, store_->place());
  }
  if (done_.value == 0) return "before the first step: nothing to save";
  save_checkpoint();
  return fmt::format("after step {}, which is saved; go on with --resume auto", done_.value);
}

void Trainer::end_early() {
  write_record();
  if (!commits_steps()) release();  // nobody can go on with a store that has no commit
}

int Trainer::stop_for_signal(int signal) {
  const std::string where = keep_steps();
  context_.log.info("stopped by signal {} {}", signal, where);
  end_early();
  return exit_code_of_signal(signal);
}

void Trainer::stop_for_data(const Error& error) {
  const std::string where = keep_steps();
  end_early();
  fail(error.kind(), "{}; stopped {}", error.what(), where);
}

bool Trainer::evaluates_at(Step step) const {
  if (!data_.validation) return false;
  const std::int64_t every = settings_.cadence.eval_steps;
  return step.value == total_steps_ || (every > 0 && step.value % every == 0);
}

bool Trainer::saves_at(Step step) const {
  const std::int64_t every = settings_.cadence.save_steps;
  return every > 0 && step.value % every == 0;
}

bool Trainer::is_boundary(Step step) const {
  return evaluates_at(step) || saves_at(step) || step.value == total_steps_;
}

std::int64_t Trainer::samples_after(Step step) const {
  return data_.training->sample_after(step.value - beginning_.state.global_step,
                                      samples_at_beginning_, batch_.samples_per_step());
}

data::SampleRange Trainer::samples_of(Step step) const {
  const std::int64_t first = samples_after(Step(step.value - 1));
  return {first, samples_after(step) - first};
}

double Trainer::epoch_at(Step step) const {
  return static_cast<double>(samples_after(step)) /
         static_cast<double>(data_.training->samples_per_epoch());
}

std::string Trainer::last_good() const {
  if (commits_steps()) {
    return fmt::format("step {}, which is committed in {} (--resume auto)", done_.value,
                       store_->place());
  }
  return last_saved_ >= 0 ? fmt::format("checkpoint-{}", last_saved_) : "";
}

std::int64_t Trainer::fill(const runtime::Executor::HostBatch& batch, data::SampleRange samples) {
  try {
    return data_.training->fill(samples, batch.tokens, batch.targets);
  } catch (const Error& error) {
    stop_for_data(error);
  }
}

void Trainer::post(Step step) {
  runtime::StepInputs inputs;
  inputs.step = step;
  const data::SampleRange samples = samples_of(step);
  for (int micro = 0; micro < static_cast<int>(batch_.accumulation); ++micro) {
    inputs.target_tokens += fill(executor_->host_batch(micro), batch_.samples(samples, micro, 0));
  }
  executor_->post_step(inputs);
  if (time_left_.seconds(1) == 0 && !first_step_) {
    first_step_.emplace(watch_, fmt::format("step {}, the first one", step.value),
                        ActivityOptions{.to_the_end = true});
  }
  answer_signals(fmt::format("step {}", step.value),
                 time_left_.seconds(executor_->steps_unfinished()));
}

void Trainer::finish() {
  const runtime::StepOutcome outcome = finish_step();
  if (outcome.skip) answer_skip(outcome);
}

void Trainer::answer_skip(const runtime::StepOutcome& skipped) {
  const bool first_loss = !std::isfinite(skipped.loss) && skipped.skipped_in_a_row == 1;
  if (!first_loss && !skipped.gives_up) return;
  runtime::StepOutcome last = skipped;
  while (executor_->steps_unfinished() > 0) last = finish_step();
  require_held_weights(ErrorKind::numerics,
                       fmt::format("{} of step {} is not finite, and neither are the weights",
                                   skipped.nonfinite, skipped.step.value));
  const runtime::StepOutcome& end = skipped.gives_up ? skipped : last;
  if (!end.gives_up) return;
  const std::string good = last_good();
  fail(ErrorKind::numerics,
       "{} in a row {} not finite, the last one in {}, and all weights are finite: training stops "
       "after {}; {}, with a lower learning rate.",
       counted(end.skipped_in_a_row, "step"), end.skipped_in_a_row == 1 ? "is" : "are",
       end.nonfinite, counted(end.updates, "update"),
       good.empty() ? std::string("nothing is saved yet, start again")
                    : fmt::format("go on from {}", good));
}

runtime::StepOutcome Trainer::finish_step() {
  const runtime::StepOutcome outcome = executor_->finish_step();
  first_step_.reset();
  done_ = outcome.step;
  const double seconds = seconds_since(last_finish_us_);
  last_finish_us_ = now_us();
  report(outcome, seconds);
  if (evaluates_at(outcome.step)) evaluate_step();
  return outcome;
}

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

void Trainer::report(const runtime::StepOutcome& outcome, double step_seconds) {
  const checkpoint::StepRow row = row_of(outcome);
  const double flops = flops_per_step_ * static_cast<double>(samples_of(outcome.step).count) /
                       static_cast<double>(batch_.samples_per_step());
  log_->write(row, {executor_->last_times(), step_seconds, flops});
  list(row);
  time_left_.add_step(step_seconds);
  if (outcome.skip) {
    context_.log.warning("step {} is skipped: {} is not finite", outcome.step.value,
                         outcome.nonfinite);
  }
  if (!shows(outcome.step)) return;
  context_.terminal.progress(
      progress_line({outcome.step.value, total_steps_, row.epoch, outcome.loss, outcome.grad_norm,
                     outcome.learning_rate, static_cast<double>(row.tokens) / step_seconds,
                     step_seconds, waited_for(executor_->last_times(), step_seconds),
                     time_left_.seconds(total_steps_ - outcome.step.value)}));
}

void Trainer::write_record(bool finished) const {
  RunRecordContents record;
  record.run = beginning_.run;
  record.command = context_.command;
  record.device =
      fmt::format("{} ({})", setup_.machine.device->name(), setup_.machine.device_reason);
  record.kernels = setup_.machine.ops->description();
  record.placement = chosen_.placement;
  record.threads = setup_.machine.threads.describe();
  if (const auto found = executor_->disk_capabilities()) {
    const io::Capabilities& can = *found;
    record.disk_engine =
        fmt::format("{}, {}, {}, reads and writes {}", can.driver,
                    can.direct ? "O_DIRECT" : "through the page cache",
                    can.registered ? "registered buffers" : "no registered buffers",
                    io::name_of(store_->pages().phases()));
  }
  record.parameters = setup_.model->parameter_count();
  record.total_steps = total_steps_;
  record.finished = finished;
  record.fallbacks = context_.log.fallbacks();
  record.lost_lines = context_.terminal.losses();
  write_run_record(output_.path() / "run.json", settings_, chosen_.plan, record);
}

std::int64_t Trainer::checkpoints_to_come() const {
  const std::int64_t every = settings_.cadence.save_steps;
  if (every <= 0 || (done_.value >= total_steps_ && last_saved_ == done_.value)) return 0;
  if (done_.value >= total_steps_) return 1;
  return (total_steps_ - 1) / every - done_.value / every + 1;
}

void Trainer::require_space_for_saving() const {
  // What stands at once beside what is there: an old one goes only when the new one is whole.
  std::int64_t more = checkpoints_to_come();
  if (const std::int64_t limit = settings_.cadence.save_total_limit; limit > 0) {
    const std::size_t there = settings_.output.overwrite
                                  ? 0
                                  : checkpoint::list_checkpoints(output_.path()).complete.size();
    more = std::min(more, std::max<std::int64_t>(1, limit + 1 - static_cast<std::int64_t>(there)));
  }
  const std::uint64_t model =
      static_cast<std::uint64_t>(setup_.model->parameter_count()) * size_of(setup_.dtype);
  const std::uint64_t needed =
      model + static_cast<std::uint64_t>(more) * checkpoint::checkpoint_bytes(contents());
  const std::filesystem::path folder = io::existing_part(output_.path());
  checkpoint::require_free_space(folder, needed - std::min(needed, output_.bytes_to_clear()),
                                 ErrorKind::does_not_fit);
}

}  // namespace terrace::train
