#include "terrace/optim/step_counter.h"

namespace terrace::optim {

void StepCounter::count_update() {
  ++state_.updates;
  state_.skipped_in_a_row = 0;
}

void StepCounter::count_skip() {
  ++state_.skipped;
  ++state_.skipped_in_a_row;
}

}  // namespace terrace::optim
