#include <algorithm>

#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "trainer.h"

// Where a run's state comes from and where it goes: a fresh model, a dead run's store, checkpoints.

namespace terrace::engine {

namespace fs = std::filesystem;

void Trainer::allocate() {
  const plan::Plan& plan = chosen_.plan;
  memory_ = std::make_unique<RunMemory>(*setup_.device, plan.memory);
}

void Trainer::make_store() {
  if (!chosen_.plan.uses_disk()) return;
  // What a dead run of this output left is of no more use once another state is chosen.
  const std::string owner = store_owner(output_);
  if (auto old = RunStore::find(settings_.placement, owner, context_.log)) old->remove();
  // A commit's run state is this one with other numbers; the list of data files makes its size.
  const std::uint64_t state_bytes =
      checkpoint::to_json(trainer_state(done_, 0, 0)).size() + 4 * kKiB;
  store_ = RunStore::create(settings_.placement, owner, chosen_.plan, state_bytes, context_.log);
}

void Trainer::load_state() {
  allocate();
  const std::string& resume = settings_.output.resume;
  bool resumed = false;
  if (resume == "auto") {
    resumed = resume_from_store();
    if (!resumed) {
      const auto newest = checkpoint::newest_checkpoint(output_);
      if (newest) resume_from_checkpoint(newest->folder);
      resumed = newest.has_value();
    }
    if (!resumed) {
      context_.log.info("--resume auto found nothing in {} to go on with; starting afresh",
                        output_.string());
    }
  } else if (!resume.empty()) {
    resume_from_checkpoint(checkpoint::resolve_checkpoint(resume));
    resumed = true;
  }
  if (!resumed) start_from_model();
  if (done_.value >= total_steps_) {
    context_.log.info(
        "the run is at step {} of {} already: nothing is left to train; raise "
        "--max_steps or --num_train_epochs to go on",
        done_.value, total_steps_);
  }
  const std::size_t dropped = checkpoint::drop_later_rows(output_ / "metrics.jsonl", done_.value);
  if (dropped > 0) {
    context_.log.info("{} rows of later steps are dropped from metrics.jsonl", dropped);
  }
}

namespace {

StateTransfer::Context transfer_context(const RunSetup& setup, const plan::Plan& plan,
                                        RunMemory& memory, RunStore* store,
                                        optim::StateFormat format) {
  return {*setup.device, *setup.model, *setup.layout,
          plan,          memory,       store == nullptr ? nullptr : &store->pages(),
          format};
}

}  // namespace

std::unique_ptr<RunStore> Trainer::store_to_go_on_with() const {
  auto store = RunStore::find(settings_.placement, store_owner(output_), context_.log);
  if (store == nullptr) return nullptr;
  const auto state = checkpoint::parse_trainer_state(store->run_state(), store->place());
  const auto newest = checkpoint::newest_checkpoint(output_);
  if (newest && newest->step > state.global_step) return nullptr;
  return store;
}

bool Trainer::resume_from_store() {
  if (store_ == nullptr) return false;
  store_->require_pages_of(chosen_.plan);
  adopt(checkpoint::parse_trainer_state(store_->run_state(), store_->place()), store_->place());
  transfer_ = std::make_unique<StateTransfer>(
      transfer_context(setup_, chosen_.plan, *memory_, store_.get(), settings_.optimizer.state),
      workers_);
  transfer_->load_parameters_from_store();
  context_.log.info("resuming at step {} from the committed store in {}", done_.value,
                    store_->place());
  return true;
}

void Trainer::resume_from_checkpoint(const fs::path& folder) {
  checkpoint::TrainingCheckpoint saved(folder);
  adopt(saved.trainer(), folder.string());
  saved.require_tensors(tensor_shapes(*setup_.model));
  saved.verify();
  history_ = saved.trainer().log_history;
  make_store();
  transfer_ = std::make_unique<StateTransfer>(
      transfer_context(setup_, chosen_.plan, *memory_, store_.get(), settings_.optimizer.state),
      workers_);
  transfer_->load(saved, true);
  last_saved_ = done_.value;
  context_.log.info("resuming at step {} from {}", done_.value, folder.string());
}

void Trainer::start_from_model() {
  make_store();
  transfer_ = std::make_unique<StateTransfer>(
      transfer_context(setup_, chosen_.plan, *memory_, store_.get(), settings_.optimizer.state),
      workers_);
  if (setup_.source.is_preset()) {
    InitialState initial(*setup_.model, identity_.seed, workers_);
    transfer_->load(initial, false);
  } else {
    transfer_->load(*open_weights(setup_.source, *setup_.model, context_.log), false);
  }
}

void Trainer::adopt(const checkpoint::TrainerState& state, const std::string& where) {
  checkpoint::require_same_run(state.identity, identity_, where);
  for (const std::string& line : checkpoint::differences(state.numerics, numerics())) {
    context_.log.info("since step {}: {}", state.global_step, line);
  }
  for (const auto& [name, value] : state.numerics) {
    const auto now = numerics();
    const auto same = std::ranges::find(now, name, &std::pair<std::string, std::string>::first);
    const bool fixes_data = name == "max_length" || name == "sequences";
    require(!fixes_data || same == now.end() || same->second == value, ErrorKind::data,
            "{} was made with {} = {}, and this run has {}, so its place in the data means other "
            "samples: give the former --max_length and --validation_fraction",
            where, name, value, same == now.end() ? "none" : same->second);
  }
  done_ = Step(state.global_step);
  counters_ = {state.adam_step, state.skipped_steps, state.skipped_in_a_row};
}

checkpoint::TrainerState Trainer::trainer_state(Step step, std::int64_t updates,
                                                std::int64_t skipped) const {
  checkpoint::TrainerState state;
  const std::int64_t samples = step.value * batch_.samples_per_step();
  const std::int64_t per_epoch = data_.training->samples_per_epoch();
  state.global_step = step.value;
  state.epoch = epoch_at(step);
  state.adam_step = updates;
  state.skipped_steps = skipped;
  state.tokens_seen = samples * length_;
  state.max_steps = total_steps_;
  state.num_train_epochs = settings_.length.epochs;
  state.loader = {samples / per_epoch, samples % per_epoch};
  state.identity = identity_;
  state.versions = {{"terrace", TERRACE_VERSION}, {"kernels", setup_.ops->description()}};
  state.numerics = numerics();
  return state;
}

std::string Trainer::commit_state(const StepOutcome& outcome) const {
  checkpoint::TrainerState state = trainer_state(outcome.step, outcome.updates, outcome.skipped);
  state.skipped_in_a_row = outcome.skipped_in_a_row;
  return checkpoint::to_json(state);
}

void Trainer::save_checkpoint() {
  if (last_saved_ == done_.value) return;
  transfer_->forget();
  checkpoint::CheckpointContents saved = contents();
  saved.trainer.adam_step = executor_->counter().updates;
  saved.trainer.skipped_steps = executor_->counter().skipped;
  saved.trainer.skipped_in_a_row = executor_->counter().skipped_in_a_row;
  const fs::path folder = checkpoint::save_checkpoint(output_, saved, *transfer_);
  last_saved_ = done_.value;
  context_.log.info("saved {}", folder.string());
  for (const fs::path& old :
       checkpoint::rotate_checkpoints(output_, settings_.cadence.save_total_limit)) {
    context_.log.info("removed {} (save_total_limit {})", old.string(),
                      settings_.cadence.save_total_limit);
  }
}

void Trainer::save_model() {
  transfer_->forget();
  const checkpoint::CheckpointContents model = contents();
  const std::uint64_t bytes =
      checkpoint::write_model_folder(output_, model.model, model.tensors, *transfer_);
  context_.log.info("saved the model in {} ({})", output_.string(), format_bytes(bytes));
}

}  // namespace terrace::engine
