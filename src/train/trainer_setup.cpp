#include <algorithm>

#include "resume_notes.h"
#include "state_form.h"
#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/config/budgets.h"
#include "terrace/config/profile.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/free_space.h"
#include "terrace/runtime/run_trace.h"
#include "terrace/train/report.h"
#include "trainer.h"

// What a run does before anything is allocated: data, plan, output folder, tables.

namespace terrace::train {

namespace fs = std::filesystem;

namespace {

/// What a position in the data is counted in, far below where a count overflows.
constexpr double kTokensMax = 1e18;

/// The Trainer's.
constexpr double kStandardLearningRate = 5e-5;

std::string when_updated(const plan::Plan& plan) {
  const std::string early = "under backward, each chunk when its gradient is final";
  const std::string late = "under the next forward, when all gradients are known to be finite";
  if (!plan.updates_before_decision) return late;
  const auto on_disk = std::ranges::count(plan.parameter_tier, memory::Tier::disk);
  if (on_disk == std::ssize(plan.parameter_tier)) return early;
  return fmt::format("of parameters on disk {}; of the others {}", early, late);
}

}  // namespace

Trainer::Trainer(config::Settings settings, const TrainContext& context)
    : settings_(std::move(settings)),
      context_(context),
      watch_(context.signal, context.terminal, context.log),
      output_(settings_.output, context.log),
      setup_(set_up(settings_, context.log)),
      workers_(setup_.machine.threads) {
  settings_.numerics.dtype = setup_.dtype;
  config::resolve_batch(settings_.batch, 1);
  output_.require_kept(setup_.source.folder);
  output_.require_place_of_trace(settings_.output.trace);
  prepare_data();
  prepare_beginning();
  record_settings();
  choose_traced_steps();
  prepare_plan();
}

void Trainer::prepare_data() {
  length_ = config::micro_batch_shape(settings_, setup_.source.config).sequence;
  const Activity checking(watch_, "checking the data");
  data_ = open_data(settings_, setup_.source, length_, context_.log);
  batch_ = {*settings_.batch.micro, *settings_.batch.accumulation, 1};
  const double standard = setup_.source.is_preset() && setup_.source.learning_rate
                              ? *setup_.source.learning_rate
                              : kStandardLearningRate;
  learning_rate_ = settings_.optimizer.learning_rate.value_or(standard);
  identity_.model = checkpoint::fingerprint_of(setup_.source.config);
  identity_.seed = static_cast<std::uint64_t>(settings_.numerics.seed);
  identity_.data = data_.dataset->fingerprint();
  for (const checkpoint::TextFile& file : setup_.source.description(setup_.dtype).files) {
    const auto bytes = std::as_bytes(std::span(file.contents));
    identity_.tokenizer.push_back({file.name, {bytes.size(), io::crc64(bytes)}});
  }
}

void Trainer::prepare_beginning() {
  {
    const Activity looking(watch_, "looking for what to go on with");
    beginning_ = find_resume_point(settings_, output_, context_.log);
  }
  const checkpoint::TrainerState& state = beginning_.state;
  if (!beginning_.starts_afresh()) {
    checkpoint::require_same_run(state.identity, identity_, beginning_.place());
    require_state_can_follow(beginning_, settings_, setup_.dtype, context_.log);
    samples_at_beginning_ = data_.training->resume(state.loader);
  }
  done_ = Step(state.global_step);
  counters_ = {state.adam_step, state.skipped_steps, state.skipped_in_a_row};
  last_saved_ = beginning_.last_saved;
  history_ = state.log_history;
  total_steps_ = settings_.length.max_steps;
  if (total_steps_ <= 0) {
    const std::int64_t left =
        data_.training->steps_from(samples_at_beginning_, batch_.samples_per_step());
    total_steps_ = done_.value + left;
  }
  require(
      static_cast<double>(total_steps_) * static_cast<double>(batch_.samples_per_step()) *
              static_cast<double>(length_) <
          kTokensMax,
      ErrorKind::usage,
      "--max_steps is {}, which at {} of {} tokens a step is more than can be counted: lower it",
      total_steps_, counted(batch_.samples_per_step(), "sequence"), length_);
}

config::Settings Trainer::compared_settings() const {
  return written_out(settings_,
                     {setup_.dtype, learning_rate_, total_steps_, setup_.machine.threads.threads});
}

void Trainer::record_settings() {
  const config::Settings settings = compared_settings();
  numerics_ = numerics_of(settings);
  layout_ = layout_of(settings);
  if (beginning_.starts_afresh()) return;
  for (const std::string& line : resume_notes(beginning_.state, settings)) {
    context_.log.info("since step {}: {}", beginning_.state.global_step, line);
  }
}

optim::LearningRateSchedule Trainer::schedule() const {
  return config::learning_rate_schedule(settings_, total_steps_, learning_rate_);
}

void Trainer::choose_traced_steps() {
  const config::OutputSettings& output = settings_.output;
  if (output.trace.empty()) return;
  require(output.trace_steps.first <= total_steps_, ErrorKind::usage,
          "--trace_steps is {}:{}, but the run ends with step {}: name steps up to that one",
          output.trace_steps.first, output.trace_steps.last, total_steps_);
  traced_ = {std::max(output.trace_steps.first, done_.value + 1),
             std::min(output.trace_steps.last, total_steps_)};
  if (traced_.first <= traced_.last) return;
  context_.log.warning(
      "{} is not written: --trace_steps is {}:{}, and the run goes on after step {}", output.trace,
      output.trace_steps.first, output.trace_steps.last, done_.value);
}

void Trainer::shorten_trace() {
  const StepRange asked = traced_;
  traced_ = plan::traceable(chosen_.plan, asked);
  if (traced_.last == asked.last) return;
  context_.log.warning(
      "{} will have steps {} to {} alone, not up to {}: a viewer opens no more than these, which "
      "have {} tasks each",
      settings_.output.trace, traced_.first, traced_.last, asked.last,
      chosen_.plan.training.tasks.size());
}

void Trainer::warn_of_profile() const {
  const std::string& source = settings_.placement.profile;
  if (source.empty() || !config::find_profile(source).device_memory_bytes) return;
  context_.log.warning(
      "--profile {} is of a device with memory of its own, and this run's is the host: what "
      "fits is judged by this machine's RAM, what is fast by the profile",
      source);
}

void Trainer::prepare_plan() {
  warn_of_profile();
  config::PlanBasis basis;
  basis.threads = setup_.machine.threads.threads;
  if (beginning_.store) basis.store_parameter_bytes = beginning_.store->parameter_bytes();
  basis.freed_disk_bytes = beginning_.freed_bytes(settings_.placement);
  const Activity choosing(watch_, "choosing a placement");
  chosen_ = config::choose_plan(settings_, *setup_.model, *setup_.layout, basis);
  shorten_trace();
  config::require_free_ram(plan::Need(chosen_.plan), config::budgets_of(settings_.placement));
  for (std::size_t unit = 0; unit < setup_.model->units().size(); ++unit) {
    flops_per_step_ +=
        3 * static_cast<double>(batch_.accumulation) *
        setup_.model->forward_flops(static_cast<int>(unit), chosen_.plan.request.micro_batch);
  }
}

void Trainer::check_beginning() {
  if (beginning_.store) {
    beginning_.store->require_pages_of(chosen_.plan,
                                       layout_differences(beginning_.state, compared_settings()));
  } else if (beginning_.checkpoint) {
    beginning_.checkpoint->require_tensors(tensor_shapes(*setup_.model));
  } else if (!setup_.source.is_preset()) {
    Activity verifying(watch_, "verifying the weights' checksums");
    weights_ = open_weights(setup_.source, *setup_.model, context_.log, verifying.progress());
  }
  if (chosen_.plan.uses_disk()) {
    for (const std::string& folder : settings_.placement.swap) io::require_drive(folder);
    report_dead_runs(settings_.placement, beginning_.run, context_.log);
  }
  require_space_for_saving();
}

std::string Trainer::describe_data() const {
  const data::Loader& training = *data_.training;
  const std::int64_t validated = data_.validation ? data_.validation->samples_per_epoch() : 0;
  std::string text = fmt::format("{} tokens, {} of {} an epoch, {} for validation",
                                 format_count(static_cast<std::uint64_t>(data_.dataset->tokens())),
                                 counted(training.samples_per_epoch(), "sequence"), length_,
                                 validated > 0 ? std::to_string(validated) : "none");
  std::int64_t used = 1 + training.sequences().targets();  // the first token is no target
  const bool is_split = data_.validation && settings_.data.eval_files.empty();
  if (is_split) used += data_.validation->sequences().targets();
  if (const std::int64_t left = data_.dataset->tokens() - used; left > 0) {
    text += fmt::format(", {} at the end left over", counted(left, "token"));
  }
  return text;
}

std::string Trainer::describe_steps() const {
  const std::int64_t full = batch_.samples_per_step();
  std::string text =
      fmt::format("{} of {} ({} of {})", total_steps_, counted(full, "sequence"),
                  counted(batch_.accumulation, "micro-batch", "micro-batches"), batch_.micro_batch);
  const std::int64_t last = data_.training->samples_per_epoch() % full;
  return last == 0 ? text : text + fmt::format(", the last of an epoch of {}", last);
}

void Trainer::warn_of_schedule() const {
  for (const std::string& line : config::schedule_warnings(schedule(), total_steps_)) {
    context_.log.warning("{}", line);
  }
}

void Trainer::print_tables() const {
  const plan::Plan& plan = chosen_.plan;
  const model::Model& model = *setup_.model;
  std::vector<config::Fact> facts = {
      {"model",
       fmt::format("{}, {} parameters, {}", setup_.source.name,
                   format_count(static_cast<std::uint64_t>(model.parameter_count())),
                   !beginning_.starts_afresh()
                       ? fmt::format("state of step {} in {}", done_.value, beginning_.place())
                   : setup_.source.is_preset() ? "random weights"
                                               : "weights of the folder")},
      {"data", describe_data()},
      {"steps", describe_steps()},
      {"learning rate", schedule().describe()},
      {"device",
       fmt::format("{} ({})", setup_.machine.device->name(), setup_.machine.device_reason)},
      {"kernels", setup_.machine.ops->description()},
      {"threads", setup_.machine.threads.describe()},
      {"placement", chosen_.placement},
      {"updates", when_updated(plan)},
      {"RAM", fmt::format("{} of {} ({})", format_bytes(chosen_.process_bytes),
                          format_bytes(chosen_.budget_bytes), chosen_.budget_source)},
      {"after a kill", plan.commits_every_step
                           ? "the run goes on at the last step: every step is committed on disk"
                           : "the run goes on at its last checkpoint"},
  };
  for (const config::Fact& fact : config::facts_of(settings_)) {
    const bool known = std::ranges::any_of(
        facts, [&](const config::Fact& other) { return other.first == fact.first; });
    if (!known) facts.push_back(fact);
  }
  context_.log.info("{}", settings_table(facts));
  print_memory();
  warn_of_schedule();
  if (plan.uses_disk()) {
    context_.log.info("each step reads {} from disk and writes {}; 1,000 steps write {}",
                      format_bytes(plan::bytes_per_step(plan, plan::Lane::disk_read)),
                      format_bytes(plan::bytes_per_step(plan, plan::Lane::disk_write)),
                      format_bytes(1000 * plan::bytes_per_step(plan, plan::Lane::disk_write)));
  }
}

void Trainer::print_memory() const {
  context_.log.info("Memory\n{}", config::memory_table(chosen_.plan));
}

runtime::OptimizerSetup Trainer::optimizer_setup() const {
  runtime::OptimizerSetup setup;
  setup.options = config::optimizer_options(settings_.optimizer);
  setup.format = settings_.optimizer.state;
  setup.schedule = schedule();
  setup.max_grad_norm = settings_.optimizer.max_grad_norm;
  setup.skips_max = settings_.optimizer.max_skipped_steps;
  setup.seed = static_cast<std::uint64_t>(settings_.numerics.seed);
  setup.threads = setup_.machine.threads;
  return setup;
}

runtime::LaneRates Trainer::lane_rates() const {
  const config::PacingSettings& pacing = settings_.pacing;
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

checkpoint::CheckpointContents Trainer::contents() const {
  checkpoint::CheckpointContents result;
  result.model = setup_.source.description(setup_.dtype);
  result.tensors = tensor_shapes(*setup_.model);
  result.moments = optim::moments_of(settings_.optimizer.type);
  result.trainer = trainer_state(done_, 0, 0);
  result.trainer.log_history = history_;
  return result;
}

}  // namespace terrace::train
