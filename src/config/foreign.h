#pragma once

#include <vector>

#include "terrace/config/options.h"

namespace terrace::config {

/// DeepSpeed's keys that are not options here.
[[nodiscard]] std::vector<Foreign> deepspeed_keys();
/// The Trainer's flags that are not options here.
[[nodiscard]] std::vector<Foreign> trainer_flags();
/// The part of `settings_options` that the numbers follow from: optimizer, schedule and types.
void add_numerics_options(OptionTable& table, Settings& settings);
/// The last part: device, tiers, disk and ranks.
void add_placement_options(OptionTable& table, Settings& settings);

}  // namespace terrace::config
