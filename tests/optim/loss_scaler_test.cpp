#include "terrace/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include "terrace/core/error.h"

namespace terrace::optim {
namespace {

LossScaleOptions small_window() {
  LossScaleOptions options;
  options.initial_scale_power = 4;
  options.loss_scale_window = 3;
  return options;
}

TEST(LossScaler, halves_after_the_hysteresis_and_never_below_the_minimum) {
  LossScaler scaler(small_window());
  EXPECT_EQ(scaler.scale(), 16);
  scaler.update(true);  // the one pass that a hysteresis of 2 has
  EXPECT_EQ(scaler.scale(), 16);
  for (const double expected : {8, 4, 2, 1, 1, 1}) {
    scaler.update(true);
    EXPECT_EQ(scaler.scale(), expected);
  }
}

TEST(LossScaler, doubles_after_a_window_of_good_steps_in_a_row_of_which_the_first_is_none) {
  LossScaler scaler(small_window());
  for (const double expected : {16, 16, 16, 32, 32, 32, 64}) {
    scaler.update(false);
    EXPECT_EQ(scaler.scale(), expected);
  }
  scaler.update(false);
  scaler.update(true);  // a pass, but the window begins again
  for (const double expected : {64, 64, 64, 128}) {
    scaler.update(false);
    EXPECT_EQ(scaler.scale(), expected);
  }
}

TEST(LossScaler, consecutive_hysteresis_gives_the_passes_back_at_every_good_step) {
  LossScaleOptions options = small_window();
  for (const bool consecutive : {false, true}) {
    options.consecutive_hysteresis = consecutive;
    LossScaler scaler(options);
    scaler.update(true);
    scaler.update(false);
    scaler.update(true);
    EXPECT_EQ(scaler.scale(), consecutive ? 16 : 8);
  }
}

TEST(LossScaler, goes_on_after_a_restore_as_if_nothing_had_happened) {
  LossScaler original(small_window());
  for (const bool overflow : {true, false, false}) original.update(overflow);
  LossScaler restored(small_window());
  restored.restore(original.state());
  for (const bool overflow : {false, true, false, false, false, true, true}) {
    original.update(overflow);
    restored.update(overflow);
    EXPECT_EQ(restored.scale(), original.scale());
  }
}

TEST(LossScaler, a_static_scale_and_none_never_change) {
  LossScaleOptions options;
  options.loss_scale = 128;
  LossScaler fixed(options);
  LossScaler none = LossScaler::none();
  for (int i = 0; i < 2000; ++i) {
    fixed.update(i % 3 == 0);
    none.update(i % 3 == 0);
  }
  EXPECT_EQ(fixed.scale(), 128);
  EXPECT_EQ(none.scale(), 1);
}

TEST(LossScaler, refuses_options_that_make_no_sense) {
  LossScaleOptions options;
  options.loss_scale_window = 0;
  EXPECT_THROW(LossScaler{options}, Error);
  options = {};
  options.min_loss_scale = 0;
  EXPECT_THROW(LossScaler{options}, Error);
  options = {};
  options.hysteresis = 0;
  EXPECT_THROW(LossScaler{options}, Error);
}

}  // namespace
}  // namespace terrace::optim
