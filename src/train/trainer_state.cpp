#include <limits>
#include <utility>

#include "state_form.h"
#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/checkpoint/held_values.h"
#include "terrace/config/drives.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/runtime/first_touch.h"
#include "trainer.h"

// Where a run's state comes from and where it goes: a fresh model, a dead run's store, checkpoints.

namespace terrace::train {

namespace fs = std::filesystem;

void Trainer::load() {
  answer_signals("");
  try {
    load_state();
    const Activity preparing(watch_, "preparing the lanes", {.to_the_end = true});
    make_executor();
  } catch (...) {  // Nobody could go on with a part of the state.
    executor_.reset();
    transfer_.reset();
    if (store_ && !store_->committed_step()) store_->remove();
    throw;
  }
}

void Trainer::allocate() {
  const Activity reserving(watch_, "reserving memory",
                           {.total = chosen_.plan.memory.bytes(memory::Tier::device) +
                                     chosen_.plan.memory.bytes(memory::Tier::host)});
  const plan::Plan& plan = chosen_.plan;
  memory_ = std::make_unique<runtime::RunMemory>(*setup_.machine.device, plan.memory);
  runtime::touch_first(plan, *memory_, workers_);
}

void Trainer::make_store() {
  {
    const Activity removing(watch_, "removing what a dead run of this output has left",
                            {.to_the_end = true});
    beginning_.remove_replaced(context_.log);
  }
  if (!chosen_.plan.uses_disk()) return;
  Activity making(watch_, "making the store",
                  {.total = config::store_bytes(settings_.placement, chosen_.plan)});
  store_ = RunStore::create(settings_.placement, output_.store_owner(beginning_.run), chosen_.plan,
                            commit_state_bytes_max(), context_.log, making.progress());
}

std::uint64_t Trainer::commit_state_bytes_max() const {
  // A commit's run state is this one with other numbers; the list of data files makes its size, and
  // the rows of steps, each as long as can be.
  constexpr double kWidest = std::numeric_limits<double>::lowest();
  constexpr std::int64_t kLongest = std::numeric_limits<std::int64_t>::min();
  checkpoint::StepRow row{kLongest, kWidest,  kWidest, kWidest, kWidest,
                          kLongest, kLongest, {},      kWidest};
  for (const model::ParameterSpec& parameter : setup_.model->parameters()) {
    if (parameter.name.size() > row.nonfinite.size()) row.nonfinite = parameter.name;
  }
  checkpoint::TrainerState state = trainer_state(done_, 0, 0);
  state.rows.assign(StepLog::kCarriedMax, row);
  return checkpoint::to_json(state).size() + 4 * kKiB;
}

void Trainer::make_transfer() {
  transfer_ =
      std::make_unique<runtime::StateTransfer>(run_context(), settings_.optimizer.state, workers_);
}

runtime::RunContext Trainer::run_context() const {
  return {*setup_.machine.device,
          *setup_.machine.ops,
          *setup_.model,
          *setup_.layout,
          chosen_.plan,
          *memory_,
          store_ ? &store_->pages() : nullptr};
}

void Trainer::load_state() {
  allocate();
  if (beginning_.store) {
    load_from_store();
  } else if (beginning_.checkpoint) {
    load_from_checkpoint();
  } else {
    load_from_model();
  }
  if (done_.value >= total_steps_) {
    context_.log.info(
        "the run is at step {} of {} already: nothing is left to train; raise "
        "--max_steps or --num_train_epochs to go on",
        done_.value, total_steps_);
  }
}

void Trainer::fill_state(checkpoint::StateSource& source, bool moments, std::string doing) {
  make_store();
  make_transfer();
  Activity filling(watch_, std::move(doing));
  checkpoint::HeldValues held(source, setup_.dtype);
  transfer_->load(held, moments, filling.progress());
  held.require_all_held(fmt::format("it cannot be trained in {}, give another --dtype",
                                    terrace::name_of(setup_.dtype)));
}

std::string Trainer::way_back() const {
  if (last_saved_ < 0) return "nothing else is saved: begin anew with --overwrite_output_dir";
  const fs::path saved = output_.path() / fmt::format("checkpoint-{}", last_saved_);
  const std::string way =
      fmt::format("go on with --resume {}, which was saved before", saved.string());
  if (!commits_steps()) return way;
  return fmt::format(
      "{}, once the store in {}, which has the same state, is removed ('terrace swap "
      "clean {}')",
      way, store_->place(), fs::path(store_->place()).parent_path().string());
}

void Trainer::require_held_weights(ErrorKind kind, const std::string& occasion) {
  const Activity looking(watch_, "looking for weights that are not finite", {.to_the_end = true});
  transfer_->forget();
  checkpoint::HeldValues held(*transfer_, setup_.dtype);
  held.read_all(StateKind::master, tensor_shapes(*setup_.model));
  if (!held.all_held()) fail(kind, "{}: {}; {}", occasion, held.fault(), way_back());
}

void Trainer::load_from_store() {
  store_ = std::move(beginning_.store);
  store_->add_scratch(chosen_.plan);
  make_transfer();
  Activity loading(watch_, "loading the parameters from the store");
  if (!transfer_->load_parameters_from_store(loading.progress())) {
    require_held_weights(ErrorKind::data,
                         fmt::format("the store in {} cannot be gone on with", store_->place()));
  }
  context_.log.info("resuming at step {} from the committed store in {}", done_.value,
                    store_->place());
}

void Trainer::load_from_checkpoint() {
  const std::unique_ptr<checkpoint::TrainingCheckpoint> saved = std::move(beginning_.checkpoint);
  const std::string name = saved->folder().filename().string();
  {
    Activity verifying(watch_, "verifying the checksums of " + name);
    saved->verify(verifying.progress());
  }
  fill_state(*saved, true, "loading " + name);
  context_.log.info("resuming at step {} from {}", done_.value, saved->folder().string());
}

void Trainer::load_from_model() {
  if (setup_.source.is_preset()) {
    runtime::InitialState initial(*setup_.model, identity_.seed, workers_);
    return fill_state(initial, false, "drawing the weights");
  }
  fill_state(*weights_, false, "loading the weights");
  weights_.reset();
}

checkpoint::TrainerState Trainer::trainer_state(Step step, std::int64_t updates,
                                                std::int64_t skipped) const {
  checkpoint::TrainerState state;
  const std::int64_t samples = samples_after(step);
  state.run = beginning_.run;
  state.global_step = step.value;
  state.epoch = epoch_at(step);
  state.adam_step = updates;
  state.skipped_steps = skipped;
  state.tokens_seen = samples * length_;
  state.max_steps = total_steps_;
  state.num_train_epochs = settings_.length.epochs;
  state.loader = data_.training->position(samples);
  state.identity = identity_;
  state.versions = {{"terrace", TERRACE_VERSION}, {"kernels", setup_.machine.ops->description()}};
  state.numerics = numerics_;
  state.layout = layout_;
  state.state_form = state_form(settings_, setup_.dtype);
  return state;
}

std::string Trainer::commit_state(const runtime::StepOutcome& outcome,
                                  std::vector<checkpoint::StepRow> rows) const {
  checkpoint::TrainerState state = trainer_state(outcome.step, outcome.updates, outcome.skipped);
  state.skipped_in_a_row = outcome.skipped_in_a_row;
  state.rows = std::move(rows);
  return checkpoint::to_json(state);
}

void Trainer::save_checkpoint(bool to_the_end) {
  if (last_saved_ == done_.value) return;
  answer_signals("");
  const std::int64_t begin_us = now_us();
  log_->sync();  // a checkpoint carries no rows
  transfer_->forget();
  checkpoint::CheckpointContents saved = contents();
  saved.trainer.adam_step = executor_->counter().updates;
  saved.trainer.skipped_steps = executor_->counter().skipped;
  saved.trainer.skipped_in_a_row = executor_->counter().skipped_in_a_row;
  fs::path folder;
  {
    Activity saving(watch_, fmt::format("saving checkpoint-{}", done_.value),
                    {.to_the_end = to_the_end});
    checkpoint::WriteOptions options;
    options.progress = saving.progress();
    folder = with_way_back(
        [&] { return checkpoint::save_checkpoint(output_.path(), saved, *transfer_, options); });
  }
  last_saved_ = done_.value;
  save_seconds_ = seconds_since(begin_us);
  answer_signals("");
  context_.log.info("saved {}", folder.string());
  remove_old_checkpoints();
}

void Trainer::remove_old_checkpoints() {
  const Activity removing(watch_, "removing old checkpoints", {.to_the_end = true});
  for (const fs::path& old :
       checkpoint::rotate_checkpoints(output_.path(), settings_.cadence.save_total_limit)) {
    context_.log.info("removed {} (save_total_limit {})", old.string(),
                      settings_.cadence.save_total_limit);
  }
}

void Trainer::save_model() {
  transfer_->forget();
  answer_signals("");
  Activity saving(watch_, "saving the model", {.to_the_end = true});
  checkpoint::WriteOptions options;
  options.progress = saving.progress();
  const checkpoint::CheckpointContents model = contents();
  const std::uint64_t bytes = with_way_back([&] {
    return checkpoint::write_model_folder(output_.path(), model.model, model.tensors, *transfer_,
                                          options);
  });
  context_.log.info("saved the model in {} ({})", output_.path().string(), format_bytes(bytes));
}

}  // namespace terrace::train
