#include "terrace/config/settings.h"

#include <algorithm>

#include "terrace/config/options.h"
#include "terrace/config/profile.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/entry.h"
#include "terrace/io/page_store.h"
#include "terrace/io/run_folder.h"

namespace terrace::config {
namespace {

void check_optimizer(const Settings& settings) {
  const OptimizerSettings& optimizer = settings.optimizer;
  const auto options = optimizer_options(optimizer);
  for (const double beta : {options.beta1, options.beta2}) {
    require(
        beta >= 0 && beta < 1, ErrorKind::usage,
        "optimizer.params.betas (--adam_beta1, --adam_beta2) holds {}, but both must be at least "
        "0 and below 1",
        beta);
  }
  require(options.eps > 0 || options.type == optim::OptimizerType::lion, ErrorKind::usage,
          "optimizer.params.eps (--adam_epsilon) is {}, but must be above 0", options.eps);
  const auto& dtype = settings.numerics.dtype;
  require(optimizer.state.master != optim::MasterFormat::split || !dtype || *dtype == DType::bf16,
          ErrorKind::usage,
          "state_format is split, which is made for bf16 parameters, but the compute type is {}: "
          "use --bf16 or --state_format fp32",
          name_of(dtype.value_or(DType::bf16)));
}

/// What a schedule's type has no place for.
void check_schedule(const ScheduleSettings& schedule) {
  using optim::ScheduleType;
  const std::string_view name = optim::name_of(schedule.type);
  const bool decays = schedule.type == ScheduleType::linear ||
                      schedule.type == ScheduleType::cosine ||
                      schedule.type == ScheduleType::warmup_cosine_lr;
  require(schedule.min_lr_ratio == 0 || schedule.type != ScheduleType::warmup_decay_lr,
          ErrorKind::usage,
          "min_lr_ratio is {}, but WarmupDecayLR ends at scheduler.params.warmup_min_lr: set that, "
          "or choose --lr_scheduler_type linear",
          schedule.min_lr_ratio);
  require(schedule.min_lr_ratio == 0 || decays, ErrorKind::usage,
          "min_lr_ratio is {}, but a {} schedule does not decay: choose --lr_scheduler_type cosine "
          "or linear",
          schedule.min_lr_ratio, name);
  require(schedule.warmup_min_ratio == 0 || schedule.type == ScheduleType::warmup_cosine_lr,
          ErrorKind::usage,
          "scheduler.params.warmup_min_ratio is {}, but {} takes a rate: set "
          "scheduler.params.warmup_min_lr",
          schedule.warmup_min_ratio, name);
  require(schedule.warmup_min_lr == 0 || schedule.type != ScheduleType::warmup_cosine_lr,
          ErrorKind::usage,
          "scheduler.params.warmup_min_lr is {}, but WarmupCosineLR takes a share of the rate: set "
          "scheduler.params.warmup_min_ratio",
          schedule.warmup_min_lr);
  require(!schedule.total_steps || schedule.type != ScheduleType::warmup_lr, ErrorKind::usage,
          "scheduler.params.total_num_steps is {}, but WarmupLR does not decay: leave it out, or "
          "choose WarmupDecayLR",
          schedule.total_steps.value_or(0));
}

/// Adam with decay means two things: DeepSpeed's name stands for AdamW unless `adam_w_mode` is
/// false.
void settle_adam(OptimizerSettings& optimizer) {
  if (!optimizer.adam_w_mode) {
    require(
        optimizer.type != optim::OptimizerType::adam || optimizer.weight_decay == 0,
        ErrorKind::usage,
        "optimizer.type is Adam and weight_decay is {}: set optimizer.params.adam_w_mode to true "
        "(decoupled, as AdamW) or false (added to the gradient)",
        optimizer.weight_decay);
    return;
  }
  const bool decoupled = *optimizer.adam_w_mode;
  require(decoupled || optimizer.type == optim::OptimizerType::adam, ErrorKind::usage,
          "optimizer.params.adam_w_mode is false, but optimizer.type is {}: write Adam",
          optim::name_of(optimizer.type));
  if (decoupled && optimizer.type == optim::OptimizerType::adam) {
    optimizer.type = optim::OptimizerType::adamw;
  }
}

void check_lengths(const Settings& settings) {
  require(settings.length.max_steps > 0 || settings.length.epochs > 0, ErrorKind::usage,
          "num_train_epochs is 0 and max_steps is {}, so there is nothing to train: give one of "
          "them a value above 0",
          settings.length.max_steps);
  require(settings.data.eval_files.empty() || settings.data.validation_fraction == 0,
          ErrorKind::usage,
          "eval_data and validation_fraction both say what to evaluate on: keep one of the two");
  require(settings.output.resume.empty() || !settings.output.overwrite, ErrorKind::usage,
          "resume continues what overwrite_output_dir would remove: keep one of the two");
}

void check_placement(const PlacementSettings& placement) {
  for (const auto& [flag, offload] : {std::pair("offload_optimizer", &placement.optimizer),
                                      std::pair("offload_param", &placement.parameters),
                                      std::pair("offload_activations", &placement.activations)}) {
    require(offload->device != Placement::nvme || !placement.swap.empty(), ErrorKind::usage,
            "{} is nvme, but no folder is named for it: add --swap DIR", flag);
  }
  const std::uint64_t block = placement.block_bytes;
  require(
      block > 0 && block % io::PageStore::kBlockBytes == 0, ErrorKind::usage,
      "aio.block_size is {}, but must be a multiple of 262144 bytes (256 KiB) above 0, because a "
      "checksum covers that much",
      block);
  if (!placement.profile.empty()) static_cast<void>(find_profile(placement.profile));
  const std::vector<std::filesystem::path> swap(placement.swap.begin(), placement.swap.end());
  io::require_distinct_folders("swap", swap);
  for (const std::filesystem::path& folder : swap) {
    const io::Entry found = io::look_at(folder);
    // What is not there may be on another machine.
    require(found == io::Entry::nothing || found == io::Entry::folder, ErrorKind::usage,
            "swap names {}, which is not a folder: name one on an NVMe drive", folder.string());
  }
}

/// The folders of `swap`, or else those of the `nvme_path`s, each once.
void gather_swap_folders(PlacementSettings& placement) {
  if (!placement.swap.empty()) return;
  for (const OffloadSettings* offload : {&placement.optimizer, &placement.parameters}) {
    if (offload->device != Placement::nvme && offload->device != Placement::automatic) continue;
    for (const std::string& folder : offload->nvme_path) {
      auto& swap = placement.swap;
      const bool known = std::ranges::any_of(
          swap, [&](const std::string& other) { return io::is_same_folder(other, folder); });
      if (!known) swap.push_back(folder);
    }
  }
}

/// `whole / part`, which must come out even; `terms` spells `part` out.
std::int64_t divide(std::int64_t whole, std::int64_t part, const std::string& terms) {
  require(whole % part == 0 && whole >= part, ErrorKind::usage,
          "train_batch_size is {}, but is not a multiple of {} = {}: change one of them", whole,
          terms, part);
  return whole / part;
}

}  // namespace

std::uint64_t Budget::of(std::uint64_t whole) const {
  if (percent == 0) return bytes;
  return static_cast<std::uint64_t>(static_cast<double>(whole) * percent / 100);
}

void finalize(Settings& settings) {
  gather_swap_folders(settings.placement);
  settle_adam(settings.optimizer);
  check_optimizer(settings);
  check_schedule(settings.schedule);
  check_lengths(settings);
  check_placement(settings.placement);
}

void finalize_for_training(Settings& settings) {
  finalize(settings);
  require(!settings.model.empty(), ErrorKind::usage,
          "--model is missing: give a model folder or the name of a preset");
  require(!settings.data.files.empty(), ErrorKind::usage,
          "--data is missing: give the files or folders to train on");
  require(!settings.output.folder.empty(), ErrorKind::usage,
          "--output is missing: give the folder for metrics and checkpoints");
}

void resolve_batch(BatchSettings& batch, std::int64_t world_size) {
  require(world_size >= 1, ErrorKind::internal, "world size {}", world_size);
  if (batch.train && batch.micro && batch.accumulation) {
    const std::int64_t product = *batch.micro * *batch.accumulation * world_size;
    require(*batch.train == product, ErrorKind::usage,
            "train_batch_size is {}, but micro-batch {} x accumulation {} x {} = {}: leave "
            "one of them out or make them agree",
            *batch.train, *batch.micro, *batch.accumulation, counted(world_size, "rank"), product);
    return;
  }
  if (batch.train && batch.micro) {
    batch.accumulation =
        divide(*batch.train, *batch.micro * world_size,
               fmt::format("micro-batch {} x {}", *batch.micro, counted(world_size, "rank")));
  } else if (batch.train) {
    const std::int64_t accumulation = batch.accumulation.value_or(1);
    batch.micro =
        divide(*batch.train, accumulation * world_size,
               fmt::format("accumulation {} x {}", accumulation, counted(world_size, "rank")));
    batch.accumulation = accumulation;
  } else {
    batch.micro = batch.micro.value_or(8);
    batch.accumulation = batch.accumulation.value_or(1);
    batch.train = *batch.micro * *batch.accumulation * world_size;
  }
}

optim::OptimizerOptions optimizer_options(const OptimizerSettings& settings) {
  auto options = optim::OptimizerOptions::defaults_of(settings.type);
  if (settings.betas) {
    options.beta1 = (*settings.betas)[0];
    options.beta2 = (*settings.betas)[1];
  }
  options.eps = settings.epsilon.value_or(options.eps);
  options.weight_decay = settings.weight_decay;
  options.bias_correction = settings.bias_correction;
  return options;
}

optim::LearningRateSchedule learning_rate_schedule(const Settings& settings,
                                                   std::int64_t total_updates,
                                                   double standard_rate) {
  const ScheduleSettings& schedule = settings.schedule;
  const std::int64_t total = schedule.total_steps.value_or(total_updates);
  const double peak = settings.optimizer.learning_rate.value_or(standard_rate);
  const bool starts_at_share = schedule.type == optim::ScheduleType::warmup_cosine_lr;
  return {
      .type = schedule.type,
      .peak = peak,
      .warmup_updates = optim::warmup_updates(schedule.warmup_steps, schedule.warmup_ratio, total),
      .total_updates = total,
      .warmup_shape = schedule.warmup_shape,
      .warmup_start = starts_at_share ? peak * schedule.warmup_min_ratio : schedule.warmup_min_lr,
      .end_ratio = schedule.min_lr_ratio};
}

std::string effective_json(const Settings& settings) {
  Settings copy = settings;
  return to_json(settings_options(copy));
}

}  // namespace terrace::config
