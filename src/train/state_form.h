#pragma once

#include <string>
#include <utility>
#include <vector>

#include "resume_point.h"
#include "terrace/config/settings.h"
#include "terrace/core/dtype.h"
#include "terrace/core/log.h"

namespace terrace::train {

/// How a run keeps its optimizer's state: the options that decide it, by key, with their values,
/// and the type of the parameters, beside which a split master is made whole.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> state_form(
    const config::Settings& settings, DType parameter);

/// Refuses to take over state that does not mean to this run what it meant to the one that kept it,
/// and says what becomes of state that is taken over in another form. A store is gone on with as it
/// lies; a checkpoint is read, so its state may take another format.
/// Errors: usage, naming the option with both values and what to do.
void require_state_can_follow(const ResumePoint& from, const config::Settings& settings,
                              DType parameter, Log& log);

}  // namespace terrace::train
