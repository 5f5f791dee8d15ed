#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::optim {

/// Hugging Face's `lr_scheduler_type`, and DeepSpeed's schedules, which are none of these.
enum class ScheduleType : std::uint8_t {
  linear,
  cosine,
  constant,
  constant_with_warmup,
  warmup_lr,         ///< DeepSpeed's WarmupLR
  warmup_decay_lr,   ///< its WarmupDecayLR
  warmup_cosine_lr,  ///< its WarmupCosineLR
};

/// "linear", "constant_with_warmup", "WarmupDecayLR": as the programs that they come from have it.
[[nodiscard]] std::string_view name_of(ScheduleType type);
[[nodiscard]] std::optional<ScheduleType> schedule_type_named(std::string_view name);

/// How the rate rises: in proportion to the updates done u, or as log(u + 1) / log(warm-up), which
/// is the default of DeepSpeed's WarmupLR and its relatives.
enum class WarmupShape : std::uint8_t { linear, logarithmic };

/// The learning rate as a function of the updates that are done.
///
/// The first four types are as the Hugging Face Trainer has them: a rise from `warmup_start` over
/// the warm-up, then a fall to `end_ratio` of the peak at `total_updates` along a line or half a
/// cosine, or no fall. `constant` knows no warm-up.
///
/// DeepSpeed sets the rate after an update and not before it, so its first two updates have the
/// rate of the start, and each later one that of the update before in the formula. A warm-up is of
/// two updates at least. WarmupDecayLR falls to `warmup_start`. WarmupCosineLR falls to `end_ratio`
/// of the peak, and its first update has the rate 0. (deepspeed/runtime/lr_schedules.py)
struct LearningRateSchedule {
  ScheduleType type = ScheduleType::linear;
  double peak = 5e-5;
  std::int64_t warmup_updates = 0;
  std::int64_t total_updates = 0;
  WarmupShape warmup_shape = WarmupShape::linear;
  double warmup_start = 0;  ///< the rate before the first update
  double end_ratio = 0;     ///< the fall ends at this share of the peak

  /// The rate of the update that follows `updates_done` (>= 0) others; skipped steps are none.
  [[nodiscard]] double rate(std::int64_t updates_done) const;
  [[nodiscard]] bool decays() const;
  /// Where the decay ends; of a schedule without one the peak.
  [[nodiscard]] double end_rate() const;
  /// Updates that have a rate below the peak before one has it.
  [[nodiscard]] std::int64_t updates_below_peak() const;
  /// "linear, from 0 up to 0.001 in 6 steps, then down to 0 at step 10".
  [[nodiscard]] std::string describe() const;

  friend bool operator==(const LearningRateSchedule&, const LearningRateSchedule&) = default;
};

/// The Trainer's rule: `warmup_steps` if above 0, else ceil(total_updates * warmup_ratio).
[[nodiscard]] std::int64_t warmup_updates(std::int64_t warmup_steps, double warmup_ratio,
                                          std::int64_t total_updates);

}  // namespace terrace::optim
