#include "terrace/config/facts.h"

#include <fmt/core.h>

#include "terrace/config/options.h"
#include "terrace/core/units.h"

namespace terrace::config {
namespace {

std::string optimizer_fact(const OptimizerSettings& settings) {
  const auto options = optimizer_options(settings);
  return fmt::format("{}, betas {} and {}, eps {}, weight decay {}{}{}",
                     optim::name_of(settings.type), options.beta1, options.beta2, options.eps,
                     options.weight_decay,
                     options.weight_decay == 0 ? ""
                     : settings.decay_all      ? " (all parameters)"
                                               : " (matrices only)",
                     options.bias_correction ? "" : ", no bias correction");
}

std::string state_fact(const OptimizerSettings& settings) {
  return fmt::format("{} bytes a parameter: master {}, moments {}",
                     optim::state_bytes_per_parameter(settings.type, settings.state),
                     optim::name_of(settings.state.master), name_of(settings.state.moments));
}

std::string rate_fact(const Settings& settings) {
  const ScheduleSettings& schedule = settings.schedule;
  std::string text = settings.optimizer.learning_rate
                         ? fmt::format("{}", *settings.optimizer.learning_rate)
                         : std::string("standard");
  text += fmt::format(", {}", optim::name_of(schedule.type));
  if (schedule.warmup_steps > 0) {
    text += fmt::format(", warm-up {}", counted(schedule.warmup_steps, "step"));
  } else if (schedule.warmup_ratio > 0) {
    text += fmt::format(", warm-up {}% of the steps", 100 * schedule.warmup_ratio);
  }
  if (schedule.min_lr_ratio > 0) text += fmt::format(", down to {} of it", schedule.min_lr_ratio);
  return text;
}

std::string batch_fact(const BatchSettings& batch) {
  return fmt::format("{} a step, micro-batches of {} x accumulation {}",
                     counted(batch.train.value_or(0), "sequence"), batch.micro.value_or(0),
                     batch.accumulation.value_or(0));
}

std::string length_fact(const LengthSettings& length) {
  return length.max_steps > 0
             ? counted(length.max_steps, "step")
             : fmt::format("{} epoch{}", length.epochs, length.epochs == 1 ? "" : "s");
}

std::string cadence_fact(const CadenceSettings& cadence) {
  if (cadence.save_steps == 0) return "none but the final model";
  const std::string every = fmt::format("every {}", counted(cadence.save_steps, "step"));
  return cadence.save_total_limit == 0
             ? every
             : fmt::format("{}, the newest {} kept", every, cadence.save_total_limit);
}

/// "disk-read 200.00 MB/s, compute 5e+09 FLOP/s"; empty where no lane is held to a rate.
std::string pacing_fact(const PacingSettings& pacing) {
  std::string text;
  auto append = [&](const char* lane, const std::string& rate) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", lane, rate);
  };
  for (const auto& [lane, rate] :
       {std::pair("h2d", pacing.h2d), std::pair("d2h", pacing.d2h),
        std::pair("disk-read", pacing.disk_read), std::pair("disk-write", pacing.disk_write),
        std::pair("optimizer", pacing.optimizer)}) {
    if (rate > 0) append(lane, format_rate(static_cast<double>(rate)));
  }
  if (pacing.compute > 0) append("compute", fmt::format("{:.3g} FLOP/s", pacing.compute));
  return text;
}

std::string numbers_fact(const NumericsSettings& numerics) {
  return fmt::format(
      "{}, {}, seed {}", numerics.dtype ? name_of(*numerics.dtype) : "auto",
      numerics.gradient_checkpointing ? "activations recomputed" : "activations kept",
      numerics.seed);
}

}  // namespace

std::vector<std::string> schedule_warnings(const optim::LearningRateSchedule& schedule,
                                           std::int64_t steps) {
  std::vector<std::string> lines;
  const bool has_warmup = schedule.warmup_updates > 0;
  if (has_warmup && schedule.updates_below_peak() >= steps) {
    lines.push_back(fmt::format(
        "the learning rate never reaches its peak of {:.6g}: the warm-up takes {}, and the run "
        "has {}; lower --warmup_steps, or let it run longer",
        schedule.peak, counted(schedule.warmup_updates, "step"), counted(steps, "step")));
  }
  if (schedule.decays() && schedule.total_updates < steps) {
    lines.push_back(fmt::format(
        "the learning rate has decayed to {:.6g} at step {}, and the run goes on at that to step "
        "{}: leave scheduler.params.total_num_steps out to decay to its end",
        schedule.end_rate(), schedule.total_updates, steps));
  }
  return lines;
}

std::vector<Fact> facts_of(const Settings& settings) {
  const double norm = settings.optimizer.max_grad_norm;
  std::vector<Fact> facts = {
      {"length", length_fact(settings.length)},
      {"batch", batch_fact(settings.batch)},
      {"numbers", numbers_fact(settings.numerics)},
      {"optimizer", optimizer_fact(settings.optimizer)},
      {"optimizer state", state_fact(settings.optimizer)},
      {"learning rate", rate_fact(settings)},
      {"gradient clipping", norm == 0 ? "off" : fmt::format("norm {}", norm)},
      {"checkpoints", cadence_fact(settings.cadence)},
  };
  if (const std::string pacing = pacing_fact(settings.pacing); !pacing.empty()) {
    facts.emplace_back("held to", pacing);
  }
  return facts;
}

}  // namespace terrace::config
