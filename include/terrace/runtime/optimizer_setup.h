#pragma once

#include <cstdint>

#include "terrace/optim/optimizer.h"
#include "terrace/optim/schedule.h"
#include "terrace/optim/state_format.h"
#include "terrace/optim/step_counter.h"

namespace terrace::runtime {

/// The numerics of an optimizer step that a run fixes.
struct OptimizerSetup {
  optim::OptimizerOptions options;
  optim::StateFormat format;
  optim::LearningRateSchedule schedule;
  double max_grad_norm = 1;
  std::int64_t skips_max = optim::StepCounter::kSkipsMax;
  std::uint64_t seed = 0;
};

}  // namespace terrace::runtime
