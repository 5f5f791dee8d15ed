#include "terrace/optim/step_counter.h"

#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::optim {

void StepCounter::count_update() {
  ++state_.updates;
  state_.skipped_in_a_row = 0;
}

void StepCounter::count_skip(std::string_view parameter, std::string_view last_good) {
  ++state_.skipped;
  ++state_.skipped_in_a_row;
  require(skips_max_ <= 0 || state_.skipped_in_a_row < skips_max_, ErrorKind::numerics,
          "{} in a row had gradients that are not finite, the last one in {}: training stops "
          "after {}; {}, with a lower learning rate.",
          counted(state_.skipped_in_a_row, "step"), parameter, counted(state_.updates, "update"),
          last_good.empty() ? std::string("nothing is saved yet, start again")
                            : fmt::format("go on from {}", last_good));
}

}  // namespace terrace::optim
