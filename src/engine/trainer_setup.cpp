#include <algorithm>
#include <cmath>

#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/file.h"
#include "trainer.h"

// What a run does before anything is allocated: data, plan, output folder, tables.

namespace terrace::engine {

namespace fs = std::filesystem;

namespace {

/// The Trainer's.
constexpr double kStandardLearningRate = 5e-5;

bool is_empty_folder(const fs::path& folder) { return !fs::exists(folder) || fs::is_empty(folder); }

}  // namespace

Trainer::Trainer(Settings settings, const TrainContext& context)
    : settings_(std::move(settings)),
      context_(context),
      output_(settings_.output.folder),
      setup_(set_up(settings_, context.log)),
      workers_(setup_.threads.threads) {
  settings_.numerics.dtype = setup_.dtype;
  resolve_batch(settings_.batch, 1);
  prepare_data();
  prepare_plan();
}

void Trainer::prepare_data() {
  length_ = micro_batch_shape(settings_, setup_.source.config).sequence;
  data_ = open_data(settings_, setup_.source, length_, context_.log);
  batch_ = {*settings_.batch.micro, *settings_.batch.accumulation, 1};
  const std::int64_t per_epoch = data_.training->samples_per_epoch();
  total_steps_ =
      settings_.length.max_steps > 0
          ? settings_.length.max_steps
          : std::max<std::int64_t>(
                1, std::llround(std::ceil(settings_.length.epochs * static_cast<double>(per_epoch) /
                                          static_cast<double>(batch_.samples_per_step()))));
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

void Trainer::prepare_plan() {
  if (settings_.output.resume == "auto") store_ = store_to_go_on_with();
  // That store holds all of the state, whatever RAM is free by now.
  const bool fill = store_ == nullptr;
  chosen_ = choose_plan(settings_, *setup_.model, *setup_.layout, fill);
  for (std::size_t unit = 0; unit < setup_.model->units().size(); ++unit) {
    flops_per_step_ +=
        3 * static_cast<double>(batch_.accumulation) *
        setup_.model->forward_flops(static_cast<int>(unit), chosen_.plan.request.micro_batch);
  }
}

void Trainer::check_output() const {
  require(!fs::exists(output_) || fs::is_directory(output_), ErrorKind::usage,
          "--output names {}, which is a file: name a folder, which is made if it is not there",
          output_.string());
  const bool resumes = !settings_.output.resume.empty();
  require(resumes || settings_.output.overwrite || is_empty_folder(output_), ErrorKind::usage,
          "the output folder {} is not empty: give --resume auto to go on with what is there, "
          "--overwrite_output_dir to start anew, or another --output",
          output_.string());
}

void Trainer::prepare_output() {
  const bool resumes = !settings_.output.resume.empty();
  std::error_code failed;
  fs::create_directories(output_, failed);
  require(!failed, ErrorKind::usage, "cannot make the output folder {}: {}", output_.string(),
          failed.message());
  if (resumes || is_empty_folder(output_)) return;
  // Only what runs make is removed; other files in the folder stay.
  const checkpoint::CheckpointList list = checkpoint::list_checkpoints(output_);
  for (const auto* group : {&list.complete, &list.broken}) {
    for (const checkpoint::CheckpointEntry& entry : *group) fs::remove_all(entry.folder);
  }
  for (const fs::path& path : list.unfinished) fs::remove_all(path);
  for (const char* name : {"metrics.jsonl", "run.json"}) fs::remove(output_ / name);
}

void Trainer::print_tables() const {
  const plan::Plan& plan = chosen_.plan;
  const model::Model& model = *setup_.model;
  std::vector<Fact> facts = {
      {"model",
       fmt::format("{}, {} parameters, {}", setup_.source.name,
                   format_count(static_cast<std::uint64_t>(model.parameter_count())),
                   setup_.source.is_preset() ? "random weights" : "weights of the folder")},
      {"data", fmt::format("{} tokens, {} sequences of {} an epoch{}",
                           format_count(static_cast<std::uint64_t>(data_.dataset->tokens())),
                           data_.training->samples_per_epoch(), length_,
                           data_.validation ? fmt::format(", {} for validation",
                                                          data_.validation->samples_per_epoch())
                                            : ", none for validation")},
      {"steps", fmt::format("{} of {} sequences ({} micro-batches of {})", total_steps_,
                            batch_.samples_per_step(), batch_.accumulation, batch_.micro_batch)},
      {"learning rate", fmt::format("{}", learning_rate_)},
      {"kernels", setup_.ops->description()},
      {"threads", fmt::format("{} ({})", setup_.threads.threads, setup_.threads.reason)},
      {"placement", chosen_.placement},
      {"updates", plan.updates_before_decision
                      ? "under backward, each chunk when its gradient is final"
                      : "under the next forward, when all gradients are known to be finite"},
      {"RAM", fmt::format("{} of {} ({})", format_bytes(chosen_.process_bytes),
                          format_bytes(chosen_.budget_bytes), chosen_.budget_source)},
      {"after a kill", plan.commits_every_step
                           ? "the run goes on at the last step: every step is committed on disk"
                           : "the run goes on at its last checkpoint"},
  };
  for (const Fact& fact : facts_of(settings_)) {
    const bool known =
        std::ranges::any_of(facts, [&](const Fact& other) { return other.first == fact.first; });
    if (!known) facts.push_back(fact);
  }
  context_.log.info("{}", settings_table(facts));
  context_.log.info("Memory\n{}", memory_table(plan));
  if (plan.uses_disk()) {
    context_.log.info("each step reads {} from disk and writes {}; 1,000 steps write {}",
                      format_bytes(bytes_per_step(plan, plan::Lane::disk_read)),
                      format_bytes(bytes_per_step(plan, plan::Lane::disk_write)),
                      format_bytes(1000 * bytes_per_step(plan, plan::Lane::disk_write)));
  }
}

OptimizerSetup Trainer::optimizer_setup() const {
  OptimizerSetup setup;
  setup.options = optimizer_options(settings_.optimizer);
  setup.format = settings_.optimizer.state;
  setup.schedule = learning_rate_schedule(settings_, total_steps_, learning_rate_);
  setup.max_grad_norm = settings_.optimizer.max_grad_norm;
  setup.skips_max = settings_.optimizer.max_skipped_steps;
  setup.seed = static_cast<std::uint64_t>(settings_.numerics.seed);
  setup.threads = setup_.threads.threads;
  return setup;
}

LaneRates Trainer::lane_rates() const {
  const PacingSettings& pacing = settings_.pacing;
  LaneRates rates{};
  auto of = [&](plan::Lane lane) -> double& { return rates[static_cast<std::size_t>(lane)]; };
  of(plan::Lane::compute) = pacing.compute;
  of(plan::Lane::h2d) = static_cast<double>(pacing.h2d);
  of(plan::Lane::d2h) = static_cast<double>(pacing.d2h);
  of(plan::Lane::disk_read) = static_cast<double>(pacing.disk_read);
  of(plan::Lane::disk_write) = static_cast<double>(pacing.disk_write);
  of(plan::Lane::optimizer) = static_cast<double>(pacing.optimizer);
  return rates;
}

std::vector<std::pair<std::string, std::string>> Trainer::numerics() const {
  const OptimizerSettings& optimizer = settings_.optimizer;
  const optim::OptimizerOptions options = optimizer_options(optimizer);
  return {
      {"learning_rate", fmt::format("{}", learning_rate_)},
      {"lr_scheduler_type", std::string(optim::name_of(settings_.schedule.type))},
      {"optimizer", std::string(optim::name_of(optimizer.type))},
      {"betas", fmt::format("{}, {}", options.beta1, options.beta2)},
      {"eps", fmt::format("{}", options.eps)},
      {"weight_decay", fmt::format("{}", options.weight_decay)},
      {"max_grad_norm", fmt::format("{}", optimizer.max_grad_norm)},
      {"dtype", std::string(terrace::name_of(setup_.dtype))},
      {"train_batch_size", fmt::format("{}", batch_.samples_per_step())},
      {"total_steps", fmt::format("{}", total_steps_)},
      {"max_length", fmt::format("{}", length_)},
      {"sequences", fmt::format("{}", data_.training->samples_per_epoch())},
  };
}

checkpoint::CheckpointContents Trainer::contents() const {
  checkpoint::CheckpointContents result;
  result.model = setup_.source.description(setup_.dtype);
  result.tensors = tensor_shapes(*setup_.model);
  result.trainer = trainer_state(done_, 0, 0);
  result.trainer.log_history = history_;
  return result;
}

}  // namespace terrace::engine
