#pragma once

#include <atomic>
#include <string>

#include "terrace/config/settings.h"
#include "terrace/core/log.h"
#include "terrace/train/report.h"

namespace terrace::train {

/// What a caller of `train` hands down.
struct TrainContext {
  Terminal& terminal;
  Log& log;
  /// The number of a signal that asks the run to stop at the next step boundary; 0: none.
  const std::atomic<int>& signal;
  std::string command;  ///< for the record
};

/// Trains as the settings say: plan, load or resume, steps, evaluation, checkpoints, final model.
/// Returns the exit code: 0, or 128 + its number after a signal (state is then saved). Everything
/// is known to fit before the first step. Errors: see `ErrorKind`.
int train(config::Settings settings, const TrainContext& context);

}  // namespace terrace::train
