#include "state_keeper.h"

#include <limits>
#include <utility>

#include "step_log.h"
#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/checkpoint/held_values.h"
#include "terrace/config/drives.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/runtime/first_touch.h"

namespace terrace::train {

namespace fs = std::filesystem;

StateKeeper::StateKeeper(RunStart& start, const TrainContext& context, Watch& watch)
    : start_(start),
      context_(context),
      watch_(watch),
      done_(start.step()),
      last_saved_(start.beginning.last_saved) {}

void StateKeeper::load() {
  answer_signals("");
  allocate();
  if (start_.beginning.store) {
    load_from_store();
  } else if (start_.beginning.checkpoint) {
    load_from_checkpoint();
  } else {
    load_from_model();
  }
  if (done_.value >= start_.total_steps) {
    context_.log.info(
        "the run is at step {} of {} already: nothing is left to train; raise "
        "--max_steps or --num_train_epochs to go on",
        done_.value, start_.total_steps);
  }
}

void StateKeeper::allocate() {
  const Activity reserving(watch_, "reserving memory",
                           {.total = start_.chosen.plan.memory.bytes(memory::Tier::device) +
                                     start_.chosen.plan.memory.bytes(memory::Tier::host)});
  const plan::Plan& plan = start_.chosen.plan;
  memory_ = std::make_unique<runtime::RunMemory>(*start_.setup.machine.device, plan.memory);
  runtime::touch_first(run_context());
}

void StateKeeper::make_store() {
  {
    const Activity removing(watch_, "removing what a dead run of this output has left",
                            {.to_the_end = true});
    start_.beginning.remove_replaced(context_.log);
  }
  if (!start_.chosen.plan.uses_disk()) return;
  Activity making(watch_, "making the store",
                  {.total = config::store_bytes(start_.settings.placement, start_.chosen.plan)});
  store_ = RunStore::create(start_.settings.placement,
                            start_.output.store_owner(start_.beginning.run), start_.chosen.plan,
                            commit_state_bytes_max(), context_.log, making.progress());
}

std::uint64_t StateKeeper::commit_state_bytes_max() const {
  // A commit's run state is this one with other numbers; the list of data files makes its size, and
  // the rows of steps, each as long as can be.
  constexpr double kWidest = std::numeric_limits<double>::lowest();
  constexpr std::int64_t kLongest = std::numeric_limits<std::int64_t>::min();
  checkpoint::StepRow row{kLongest, kWidest,  kWidest, kWidest, kWidest,
                          kLongest, kLongest, {},      kWidest};
  for (const model::ParameterSpec& parameter : start_.setup.model->parameters()) {
    if (parameter.name.size() > row.nonfinite.size()) row.nonfinite = parameter.name;
  }
  checkpoint::TrainerState state = start_.trainer_state(done_, {});
  state.rows.assign(StepLog::kCarriedMax, row);
  return checkpoint::to_json(state).size() + 4 * kKiB;
}

void StateKeeper::make_transfer() {
  transfer_ =
      std::make_unique<runtime::StateTransfer>(run_context(), start_.settings.optimizer.state);
}

runtime::RunContext StateKeeper::run_context() const {
  return {*start_.setup.machine.device,
          *start_.setup.machine.ops,
          *start_.setup.machine.optimizer_ops,
          *start_.setup.model,
          *start_.setup.layout,
          start_.chosen.plan,
          *memory_,
          store_ ? &store_->pages() : nullptr};
}

void StateKeeper::fill_state(checkpoint::StateSource& source, bool moments, std::string doing) {
  make_store();
  make_transfer();
  Activity filling(watch_, std::move(doing));
  checkpoint::HeldValues held(source, start_.setup.dtype);
  transfer_->load(held, moments, filling.progress());
  held.require_all_held(fmt::format("it cannot be trained in {}, give another --dtype",
                                    terrace::name_of(start_.setup.dtype)));
}

void StateKeeper::load_from_store() {
  store_ = std::move(start_.beginning.store);
  store_->add_scratch(start_.chosen.plan);
  make_transfer();
  Activity loading(watch_, "loading the parameters from the store");
  if (!transfer_->load_parameters_from_store(loading.progress())) {
    require_held_weights(ErrorKind::data,
                         fmt::format("the store in {} cannot be gone on with", store_->place()));
  }
  context_.log.info("resuming at step {} from the committed store in {}", done_.value,
                    store_->place());
}

void StateKeeper::load_from_checkpoint() {
  const std::unique_ptr<checkpoint::TrainingCheckpoint> saved =
      std::move(start_.beginning.checkpoint);
  const std::string name = saved->folder().filename().string();
  {
    Activity verifying(watch_, "verifying the checksums of " + name);
    saved->verify(verifying.progress());
  }
  fill_state(*saved, true, "loading " + name);
  context_.log.info("resuming at step {} from {}", done_.value, saved->folder().string());
}

void StateKeeper::load_from_model() {
  if (start_.setup.source.is_preset()) {
    runtime::InitialState initial(*start_.setup.model, start_.identity.seed,
                                  *start_.setup.machine.workers);
    return fill_state(initial, false, "drawing the weights");
  }
  fill_state(*start_.weights, false, "loading the weights");
  start_.weights.reset();
}

bool StateKeeper::commits_steps() const {
  return store_ != nullptr && start_.chosen.plan.commits_every_step;
}

std::string StateKeeper::last_good() const {
  if (commits_steps()) {
    return fmt::format("step {}, which is committed in {} (--resume auto)", done_.value,
                       store_->place());
  }
  return last_saved_ >= 0 ? fmt::format("checkpoint-{}", last_saved_) : "";
}

std::string StateKeeper::way_back() const {
  if (last_saved_ < 0) return "nothing else is saved: begin anew with --overwrite_output_dir";
  const fs::path saved = start_.output.path() / fmt::format("checkpoint-{}", last_saved_);
  const std::string way =
      fmt::format("go on with --resume {}, which was saved before", saved.string());
  if (!commits_steps()) return way;
  return fmt::format(
      "{}, once the store in {}, which has the same state, is removed ('terrace swap "
      "clean {}')",
      way, store_->place(), fs::path(store_->place()).parent_path().string());
}

void StateKeeper::require_held_weights(ErrorKind kind, const std::string& occasion) {
  const Activity looking(watch_, "looking for weights that are not finite", {.to_the_end = true});
  transfer_->forget();
  checkpoint::HeldValues held(*transfer_, start_.setup.dtype);
  held.read_all(StateKind::master, tensor_shapes(*start_.setup.model));
  if (!held.all_held()) fail(kind, "{}: {}; {}", occasion, held.fault(), way_back());
}

void StateKeeper::answer_signals(const std::string& doing, double seconds) {
  const std::string good = last_good();
  StopAnswer answer{good.empty() ? "nothing is saved yet" : good + " is safe", doing, seconds};
  if (!doing.empty() && !commits_steps()) {
    answer.then = "a checkpoint is saved";
    answer.then_seconds = save_seconds_;
  }
  watch_.answer(std::move(answer));
}

void StateKeeper::save_checkpoint(const checkpoint::CheckpointContents& contents, bool to_the_end) {
  answer_signals("");
  const std::int64_t begin_us = now_us();
  transfer_->forget();
  fs::path folder;
  {
    Activity saving(watch_, fmt::format("saving checkpoint-{}", done_.value),
                    {.to_the_end = to_the_end});
    checkpoint::WriteOptions options;
    options.progress = saving.progress();
    folder = with_way_back([&] {
      return checkpoint::save_checkpoint(start_.output.path(), contents, *transfer_, options);
    });
  }
  last_saved_ = done_.value;
  save_seconds_ = seconds_since(begin_us);
  answer_signals("");
  context_.log.info("saved {}", folder.string());
  remove_old_checkpoints();
}

void StateKeeper::remove_old_checkpoints() {
  const Activity removing(watch_, "removing old checkpoints", {.to_the_end = true});
  for (const fs::path& old : checkpoint::rotate_checkpoints(
           start_.output.path(), start_.settings.cadence.save_total_limit)) {
    context_.log.info("removed {} (save_total_limit {})", old.string(),
                      start_.settings.cadence.save_total_limit);
  }
}

void StateKeeper::save_model(const checkpoint::CheckpointContents& contents) {
  transfer_->forget();
  answer_signals("");
  Activity saving(watch_, "saving the model", {.to_the_end = true});
  checkpoint::WriteOptions options;
  options.progress = saving.progress();
  const std::uint64_t bytes = with_way_back([&] {
    return checkpoint::write_model_folder(start_.output.path(), contents.model, contents.tensors,
                                          *transfer_, options);
  });
  context_.log.info("saved the model in {} ({})", start_.output.path().string(),
                    format_bytes(bytes));
}

void StateKeeper::abandon() {
  transfer_.reset();
  if (store_ && !store_->committed_step()) store_->remove();
}

void StateKeeper::release() {
  {
    const Activity freeing(watch_, "giving the memory back", {.to_the_end = true});
    transfer_.reset();
    memory_.reset();
  }
  if (!store_) return;
  const Activity removing(
      watch_, "removing the store",
      {.total = config::store_bytes(start_.settings.placement, start_.chosen.plan),
       .to_the_end = true});
  store_->remove();
}

}  // namespace terrace::train
