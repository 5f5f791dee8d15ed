#include "run_start.h"

#include <algorithm>
#include <utility>

#include "resume_notes.h"
#include "state_form.h"
#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/config/budgets.h"
#include "terrace/config/profile.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/checksum.h"
#include "terrace/io/file.h"
#include "terrace/io/free_space.h"

namespace terrace::train {
namespace {

/// What a position in the data is counted in, far below where a count overflows.
constexpr double kTokensMax = 1e18;

/// The Trainer's.
constexpr double kStandardLearningRate = 5e-5;

}  // namespace

RunStart::RunStart(config::Settings settings_in, const TrainContext& context, Watch& watch)
    : settings(std::move(settings_in)),
      output(settings.output, context.log),
      setup(set_up(settings, context.log)),
      context_(context),
      watch_(watch) {
  settings.numerics.dtype = setup.dtype;
  config::resolve_batch(settings.batch, 1);
  output.require_kept(setup.source.folder);
  output.require_place_of_trace(settings.output.trace);
  prepare_data();
  prepare_beginning();
  record_settings();
  choose_traced_steps();
  prepare_plan();
}

void RunStart::prepare_data() {
  length = config::micro_batch_shape(settings, setup.source.config).sequence;
  const Activity checking(watch_, "checking the data");
  data = open_data(settings, setup.source, length, context_.log);
  batch = {*settings.batch.micro, *settings.batch.accumulation, 1};
  const double standard = setup.source.is_preset() && setup.source.learning_rate
                              ? *setup.source.learning_rate
                              : kStandardLearningRate;
  learning_rate = settings.optimizer.learning_rate.value_or(standard);
  identity.model = checkpoint::fingerprint_of(setup.source.config);
  identity.seed = static_cast<std::uint64_t>(settings.numerics.seed);
  identity.data = data.dataset->fingerprint();
  for (const checkpoint::TextFile& file : setup.source.description(setup.dtype).files) {
    const auto bytes = std::as_bytes(std::span(file.contents));
    identity.tokenizer.push_back({file.name, {bytes.size(), io::crc64(bytes)}});
  }
}

void RunStart::prepare_beginning() {
  {
    const Activity looking(watch_, "looking for what to go on with");
    beginning = find_resume_point(settings, output, context_.log);
  }
  const checkpoint::TrainerState& state = beginning.state;
  if (!beginning.starts_afresh()) {
    checkpoint::require_same_run(state.identity, identity, beginning.place());
    require_state_can_follow(beginning, settings, setup.dtype, context_.log);
    samples_at_beginning = data.training->resume(state.loader);
  }
  total_steps = settings.length.max_steps;
  if (total_steps <= 0) {
    const std::int64_t left =
        data.training->steps_from(samples_at_beginning, batch.samples_per_step());
    total_steps = state.global_step + left;
  }
  require(
      static_cast<double>(total_steps) * static_cast<double>(batch.samples_per_step()) *
              static_cast<double>(length) <
          kTokensMax,
      ErrorKind::usage,
      "--max_steps is {}, which at {} of {} tokens a step is more than can be counted: lower it",
      total_steps, counted(batch.samples_per_step(), "sequence"), length);
}

config::Settings RunStart::compared_settings() const {
  return written_out(settings,
                     {setup.dtype, learning_rate, total_steps, setup.machine.threads.threads});
}

void RunStart::record_settings() {
  const config::Settings compared = compared_settings();
  numerics = numerics_of(compared);
  layout = layout_of(compared);
  if (beginning.starts_afresh()) return;
  for (const std::string& line : resume_notes(beginning.state, compared)) {
    context_.log.info("since step {}: {}", beginning.state.global_step, line);
  }
}

void RunStart::choose_traced_steps() {
  const config::OutputSettings& asked = settings.output;
  if (asked.trace.empty()) return;
  require(asked.trace_steps.first <= total_steps, ErrorKind::usage,
          "--trace_steps is {}:{}, but the run ends with step {}: name steps up to that one",
          asked.trace_steps.first, asked.trace_steps.last, total_steps);
  traced = {std::max(asked.trace_steps.first, step().value + 1),
            std::min(asked.trace_steps.last, total_steps)};
  if (traced.first <= traced.last) return;
  context_.log.warning(
      "{} is not written: --trace_steps is {}:{}, and the run goes on after step {}", asked.trace,
      asked.trace_steps.first, asked.trace_steps.last, step().value);
}

void RunStart::shorten_trace() {
  const StepRange asked = traced;
  traced = plan::traceable(chosen.plan, asked);
  if (traced.last == asked.last) return;
  context_.log.warning(
      "{} will have steps {} to {} alone, not up to {}: a viewer opens no more than these, which "
      "have {} tasks each",
      settings.output.trace, traced.first, traced.last, asked.last,
      chosen.plan.training.tasks.size());
}

void RunStart::warn_of_profile() const {
  const std::string& source = settings.placement.profile;
  if (source.empty() || !config::find_profile(source).device_memory_bytes) return;
  context_.log.warning(
      "--profile {} is of a device with memory of its own, and this run's is the host: what "
      "fits is judged by this machine's RAM, what is fast by the profile",
      source);
}

void RunStart::prepare_plan() {
  warn_of_profile();
  config::PlanBasis basis;
  basis.threads = setup.machine.threads.threads;
  if (beginning.store) basis.store_parameter_bytes = beginning.store->parameter_bytes();
  basis.freed_disk_bytes = beginning.freed_bytes(settings.placement);
  const Activity choosing(watch_, "choosing a placement");
  chosen = config::choose_plan(settings, *setup.model, *setup.layout, basis);
  shorten_trace();
  config::require_free_ram(plan::Need(chosen.plan), config::budgets_of(settings.placement));
  for (std::size_t unit = 0; unit < setup.model->units().size(); ++unit) {
    flops_per_step +=
        3 * static_cast<double>(batch.accumulation) *
        setup.model->forward_flops(static_cast<int>(unit), chosen.plan.request.micro_batch);
  }
}

void RunStart::check() {
  if (beginning.store) {
    beginning.store->require_pages_of(chosen.plan,
                                      layout_differences(beginning.state, compared_settings()));
  } else if (beginning.checkpoint) {
    beginning.checkpoint->require_tensors(tensor_shapes(*setup.model));
  } else if (!setup.source.is_preset()) {
    Activity verifying(watch_, "verifying the weights' checksums");
    weights = open_weights(setup.source, *setup.model, context_.log, verifying.progress());
  }
  if (chosen.plan.uses_disk()) {
    for (const std::string& folder : settings.placement.swap) io::require_drive(folder);
    report_dead_runs(settings.placement, beginning.run, context_.log);
  }
  require_space_for_saving();
}

std::int64_t RunStart::checkpoints_to_come() const {
  const std::int64_t every = settings.cadence.save_steps;
  const std::int64_t done = step().value;
  if (every <= 0 || (done >= total_steps && beginning.last_saved == done)) return 0;
  if (done >= total_steps) return 1;
  return (total_steps - 1) / every - done / every + 1;
}

void RunStart::require_space_for_saving() const {
  // What stands at once beside what is there: an old one goes only when the new one is whole.
  std::int64_t more = checkpoints_to_come();
  if (const std::int64_t limit = settings.cadence.save_total_limit; limit > 0) {
    const std::size_t there =
        settings.output.overwrite ? 0 : checkpoint::list_checkpoints(output.path()).complete.size();
    more = std::min(more, std::max<std::int64_t>(1, limit + 1 - static_cast<std::int64_t>(there)));
  }
  const std::uint64_t model =
      static_cast<std::uint64_t>(setup.model->parameter_count()) * size_of(setup.dtype);
  checkpoint::TrainerState state = trainer_state(step(), {});
  state.log_history = beginning.state.log_history;
  const std::uint64_t needed = model + static_cast<std::uint64_t>(more) *
                                           checkpoint::checkpoint_bytes(contents(std::move(state)));
  const std::filesystem::path folder = io::existing_part(output.path());
  checkpoint::require_free_space(folder, needed - std::min(needed, output.bytes_to_clear()),
                                 ErrorKind::does_not_fit);
}

checkpoint::CheckpointContents RunStart::contents(checkpoint::TrainerState state) const {
  checkpoint::CheckpointContents result;
  result.model = setup.source.description(setup.dtype);
  result.tensors = tensor_shapes(*setup.model);
  result.moments = optim::moments_of(settings.optimizer.type);
  result.trainer = std::move(state);
  return result;
}

optim::LearningRateSchedule RunStart::schedule() const {
  return config::learning_rate_schedule(settings, total_steps, learning_rate);
}

runtime::OptimizerSetup RunStart::optimizer_setup() const {
  runtime::OptimizerSetup result;
  result.options = config::optimizer_options(settings.optimizer);
  result.format = settings.optimizer.state;
  result.schedule = schedule();
  result.max_grad_norm = settings.optimizer.max_grad_norm;
  result.skips_max = settings.optimizer.max_skipped_steps;
  result.seed = static_cast<std::uint64_t>(settings.numerics.seed);
  return result;
}

runtime::LaneRates RunStart::lane_rates() const {
  const config::PacingSettings& pacing = settings.pacing;
  runtime::LaneRates rates{};
  auto of = [&](plan::Lane lane) -> double& { return rates[static_cast<std::size_t>(lane)]; };
  of(plan::Lane::compute) = pacing.compute;
  of(plan::Lane::h2d) = static_cast<double>(pacing.h2d);
  of(plan::Lane::d2h) = static_cast<double>(pacing.d2h);
  of(plan::Lane::disk_read) = static_cast<double>(pacing.disk_read);
  of(plan::Lane::disk_write) = static_cast<double>(pacing.disk_write);
  of(plan::Lane::optimizer) = static_cast<double>(pacing.optimizer);
  return rates;
}

std::int64_t RunStart::samples_after(Step step) const {
  return data.training->sample_after(step.value - beginning.state.global_step, samples_at_beginning,
                                     batch.samples_per_step());
}

data::SampleRange RunStart::samples_of(Step step) const {
  const std::int64_t first = samples_after(Step(step.value - 1));
  return {first, samples_after(step) - first};
}

double RunStart::epoch_at(Step step) const {
  return static_cast<double>(samples_after(step)) /
         static_cast<double>(data.training->samples_per_epoch());
}

bool RunStart::evaluates_at(Step step) const {
  if (!data.validation) return false;
  const std::int64_t every = settings.cadence.eval_steps;
  return step.value == total_steps || (every > 0 && step.value % every == 0);
}

bool RunStart::saves_at(Step step) const {
  const std::int64_t every = settings.cadence.save_steps;
  return every > 0 && step.value % every == 0;
}

bool RunStart::is_boundary(Step step) const {
  return evaluates_at(step) || saves_at(step) || step.value == total_steps;
}

bool RunStart::shows(Step step) const {
  const std::int64_t every = settings.cadence.logging_steps;
  return every > 0 && (step.value % every == 0 || step.value == total_steps);
}

checkpoint::TrainerState RunStart::trainer_state(Step step,
                                                 const optim::StepCounter::State& counters) const {
  checkpoint::TrainerState state;
  const std::int64_t samples = samples_after(step);
  state.run = beginning.run;
  state.global_step = step.value;
  state.epoch = epoch_at(step);
  state.adam_step = counters.updates;
  state.skipped_steps = counters.skipped;
  state.skipped_in_a_row = counters.skipped_in_a_row;
  state.tokens_seen = samples * length;
  state.max_steps = total_steps;
  state.num_train_epochs = settings.length.epochs;
  state.loader = data.training->position(samples);
  state.identity = identity;
  state.versions = {{"terrace", TERRACE_VERSION}, {"kernels", setup.machine.ops->description()}};
  state.numerics = numerics;
  state.layout = layout;
  state.state_form = state_form(settings, setup.dtype);
  return state;
}

}  // namespace terrace::train
