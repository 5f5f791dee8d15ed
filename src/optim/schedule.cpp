#include "terrace/optim/schedule.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

namespace terrace::optim {
namespace {

constexpr std::array kNames = {
    std::pair<ScheduleType, std::string_view>(ScheduleType::linear, "linear"),
    std::pair<ScheduleType, std::string_view>(ScheduleType::cosine, "cosine"),
    std::pair<ScheduleType, std::string_view>(ScheduleType::constant, "constant"),
    std::pair<ScheduleType, std::string_view>(ScheduleType::constant_with_warmup,
                                              "constant_with_warmup"),
    std::pair<ScheduleType, std::string_view>(ScheduleType::warmup_lr, "WarmupLR"),
    std::pair<ScheduleType, std::string_view>(ScheduleType::warmup_decay_lr, "WarmupDecayLR"),
    std::pair<ScheduleType, std::string_view>(ScheduleType::warmup_cosine_lr, "WarmupCosineLR"),
};

bool is_deepspeeds(ScheduleType type) {
  return type == ScheduleType::warmup_lr || type == ScheduleType::warmup_decay_lr ||
         type == ScheduleType::warmup_cosine_lr;
}

double ratio(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(1, whole));
}

/// Updates of the warm-up.
std::int64_t length_of_warmup(const LearningRateSchedule& schedule) {
  if (schedule.type == ScheduleType::constant) return 0;
  return is_deepspeeds(schedule.type) ? std::max<std::int64_t>(2, schedule.warmup_updates)
                                      : schedule.warmup_updates;
}

/// The rate when `updates` of the warm-up are done.
double risen(const LearningRateSchedule& schedule, std::int64_t updates) {
  const std::int64_t length = length_of_warmup(schedule);
  const double share = schedule.warmup_shape == WarmupShape::linear
                           ? ratio(updates, length)
                           : std::log(static_cast<double>(updates + 1)) /
                                 std::log(static_cast<double>(std::max<std::int64_t>(2, length)));
  return schedule.warmup_start + (schedule.peak - schedule.warmup_start) * share;
}

/// The rate when `share` (1 to 0) of the fall is still to come.
double fallen(const LearningRateSchedule& schedule, double share) {
  if (schedule.type == ScheduleType::warmup_decay_lr) {
    return schedule.warmup_start + (schedule.peak - schedule.warmup_start) * share;
  }
  return schedule.peak * (schedule.end_ratio + (1 - schedule.end_ratio) * share);
}

/// The share of the fall that is still to come on a line, of which `left` updates of `span` are.
double left_of_line(std::int64_t left, std::int64_t span) {
  return std::max(0.0, ratio(left, span));
}

/// The same on half a cosine when `done` are done; past its end it would rise again.
double left_of_cosine(std::int64_t done, std::int64_t span) {
  const double progress = std::min(1.0, ratio(done, span));
  return std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * progress)));
}

double deepspeeds_rate(const LearningRateSchedule& schedule, std::int64_t updates_done) {
  const bool is_cosine = schedule.type == ScheduleType::warmup_cosine_lr;
  if (updates_done == 0) return is_cosine ? 0 : schedule.warmup_start;
  const std::int64_t iteration = updates_done - 1;
  const std::int64_t warmup = length_of_warmup(schedule);
  if (iteration < warmup) return risen(schedule, iteration);
  const std::int64_t span = schedule.total_updates - warmup;
  if (is_cosine) return fallen(schedule, left_of_cosine(iteration - warmup + 1, span));
  if (schedule.type == ScheduleType::warmup_lr) return schedule.peak;
  return fallen(schedule, left_of_line(schedule.total_updates - iteration, span));
}

}  // namespace

std::string_view name_of(ScheduleType type) {
  const auto* const found =
      std::ranges::find(kNames, type, &std::pair<ScheduleType, std::string_view>::first);
  return found == kNames.end() ? "?" : found->second;
}

std::optional<ScheduleType> schedule_type_named(std::string_view name) {
  const auto* const found =
      std::ranges::find(kNames, name, &std::pair<ScheduleType, std::string_view>::second);
  return found == kNames.end() ? std::nullopt : std::optional(found->first);
}

double LearningRateSchedule::rate(std::int64_t updates_done) const {
  if (type == ScheduleType::constant) return peak;
  if (is_deepspeeds(type)) return deepspeeds_rate(*this, updates_done);
  if (updates_done < warmup_updates) return risen(*this, updates_done);
  const std::int64_t span = total_updates - warmup_updates;
  if (type == ScheduleType::linear) {
    return fallen(*this, left_of_line(total_updates - updates_done, span));
  }
  if (type == ScheduleType::cosine) {
    return fallen(*this, left_of_cosine(updates_done - warmup_updates, span));
  }
  return peak;
}

bool LearningRateSchedule::decays() const {
  return type == ScheduleType::linear || type == ScheduleType::cosine ||
         type == ScheduleType::warmup_decay_lr || type == ScheduleType::warmup_cosine_lr;
}

double LearningRateSchedule::end_rate() const { return decays() ? fallen(*this, 0) : peak; }

std::int64_t LearningRateSchedule::updates_below_peak() const {
  const std::int64_t length = length_of_warmup(*this);
  // The logarithm is at its end one update earlier, DeepSpeed's formula goes by the one before.
  const bool is_early = warmup_shape == WarmupShape::logarithmic && length > 1;
  return length + (is_deepspeeds(type) ? 1 : 0) - (is_early ? 1 : 0);
}

std::string LearningRateSchedule::describe() const {
  std::string text(name_of(type));
  if (const std::int64_t length = length_of_warmup(*this); length > 0) {
    text += fmt::format(", from {:.6g} up to {:.6g} in {} {}{}", warmup_start, peak, length,
                        length == 1 ? "step" : "steps",
                        warmup_shape == WarmupShape::logarithmic ? " along a logarithm" : "");
  } else {
    text += fmt::format(", {:.6g}", peak);
  }
  if (decays()) {
    text += fmt::format(", then down to {:.6g} at step {}", end_rate(), total_updates);
  } else if (type != ScheduleType::constant) {
    text += ", then constant";
  }
  return text;
}

std::int64_t warmup_updates(std::int64_t warmup_steps, double warmup_ratio,
                            std::int64_t total_updates) {
  if (warmup_steps > 0) return warmup_steps;
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(total_updates) * warmup_ratio));
}

}  // namespace terrace::optim
