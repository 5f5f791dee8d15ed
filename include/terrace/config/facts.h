#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "terrace/config/settings.h"

namespace terrace::config {

/// A name and what it is set to.
using Fact = std::pair<std::string, std::string>;

/// What the settings alone say about a run: optimizer with all its numbers, schedule, batch,
/// length, numbers, placement. The caller adds what it found out (model, data, threads and their
/// reason).
[[nodiscard]] std::vector<Fact> facts_of(const Settings& settings);
/// What of a schedule a run of so many steps does not see: a peak that is never reached, a decay
/// that ends too early.
[[nodiscard]] std::vector<std::string> schedule_warnings(
    const optim::LearningRateSchedule& schedule, std::int64_t steps);

}  // namespace terrace::config
