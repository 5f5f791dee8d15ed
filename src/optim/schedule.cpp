#include "terrace/optim/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace terrace::optim {
namespace {

constexpr std::array kTypes = {ScheduleType::linear, ScheduleType::cosine, ScheduleType::constant,
                               ScheduleType::constant_with_warmup};

double ratio(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(1, whole));
}

/// The share of the warm-up's rise that is done.
double share_risen(const LearningRateSchedule& schedule, std::int64_t updates_done) {
  if (schedule.warmup_shape == WarmupShape::linear) {
    return ratio(updates_done, schedule.warmup_updates);
  }
  return std::log(static_cast<double>(updates_done + 1)) /
         std::log(static_cast<double>(std::max<std::int64_t>(2, schedule.warmup_updates)));
}

/// The rate when `share` (1 to 0) of the fall is still to come.
double fallen_to(const LearningRateSchedule& schedule, double share) {
  return schedule.peak * (schedule.end_ratio + (1 - schedule.end_ratio) * share);
}

}  // namespace

std::string_view name_of(ScheduleType type) {
  switch (type) {
    case ScheduleType::linear:
      return "linear";
    case ScheduleType::cosine:
      return "cosine";
    case ScheduleType::constant:
      return "constant";
    case ScheduleType::constant_with_warmup:
      return "constant_with_warmup";
  }
  return "?";
}

std::optional<ScheduleType> schedule_type_named(std::string_view name) {
  for (const ScheduleType type : kTypes) {
    if (name == name_of(type)) return type;
  }
  return std::nullopt;
}

double LearningRateSchedule::rate(std::int64_t updates_done) const {
  if (type == ScheduleType::constant) return peak;
  if (updates_done < warmup_updates) {
    return warmup_start + (peak - warmup_start) * share_risen(*this, updates_done);
  }
  const std::int64_t span = total_updates - warmup_updates;
  switch (type) {
    case ScheduleType::linear:
      return fallen_to(*this, std::max(0.0, ratio(total_updates - updates_done, span)));
    case ScheduleType::cosine: {
      // Past the end the cosine would rise again.
      const double progress = std::min(1.0, ratio(updates_done - warmup_updates, span));
      return fallen_to(*this, std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * progress))));
    }
    default:
      return peak;
  }
}

std::int64_t warmup_updates(std::int64_t warmup_steps, double warmup_ratio,
                            std::int64_t total_updates) {
  if (warmup_steps > 0) return warmup_steps;
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(total_updates) * warmup_ratio));
}

}  // namespace terrace::optim
