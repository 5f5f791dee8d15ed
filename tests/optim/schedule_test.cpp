#include "terrace/optim/schedule.h"

#include <gtest/gtest.h>

#include "core/parsed_json.h"

namespace terrace::optim {
namespace {

TEST(LearningRateSchedule, equals_hugging_faces) {
  const auto golden = testing::read_json(TERRACE_GOLDEN "/schedules.json");
  const double peak = golden["peak"];
  ASSERT_EQ(golden["cases"].size(), 20U);
  for (const auto& golden_case : golden["cases"]) {
    const auto type = schedule_type_named(golden_case["type"].get<std::string>());
    ASSERT_TRUE(type.has_value());
    const LearningRateSchedule schedule{*type, peak, golden_case["warmup"], golden_case["total"]};
    std::int64_t done = 0;
    for (const double expected : golden_case["rates"]) {
      // A few roundings of factors that are at most 1.
      EXPECT_NEAR(schedule.rate(done), expected, 8 * 0x1p-53 * peak)
          << golden_case["type"] << " warmup " << schedule.warmup_updates << " of "
          << schedule.total_updates << ", update " << done;
      ++done;
    }
  }
}

TEST(LearningRateSchedule, stays_at_zero_past_the_end) {
  for (const ScheduleType type : {ScheduleType::linear, ScheduleType::cosine}) {
    EXPECT_EQ((LearningRateSchedule{type, 1, 2, 10}.rate(15)), 0) << name_of(type);
  }
}

TEST(LearningRateSchedule, rises_along_a_line_or_a_logarithm) {
  LearningRateSchedule schedule{ScheduleType::constant_with_warmup, 3, 8, 20};
  schedule.warmup_start = 1;
  EXPECT_DOUBLE_EQ(schedule.rate(0), 1);
  EXPECT_DOUBLE_EQ(schedule.rate(2), 1 + 2 * 2.0 / 8);
  schedule.warmup_shape = WarmupShape::logarithmic;
  EXPECT_DOUBLE_EQ(schedule.rate(0), 1);
  EXPECT_DOUBLE_EQ(schedule.rate(1), 1 + 2 / 3.0);  // log 2 / log 8
  EXPECT_DOUBLE_EQ(schedule.rate(3), 1 + 4 / 3.0);  // log 4 / log 8
  EXPECT_DOUBLE_EQ(schedule.rate(8), 3);
  schedule.warmup_updates = 1;
  EXPECT_DOUBLE_EQ(schedule.rate(0), 1);
}

TEST(LearningRateSchedule, falls_to_a_share_of_the_peak) {
  for (const ScheduleType type : {ScheduleType::linear, ScheduleType::cosine}) {
    LearningRateSchedule schedule{type, 2, 0, 10};
    schedule.end_ratio = 0.1;
    EXPECT_DOUBLE_EQ(schedule.rate(0), 2);
    EXPECT_DOUBLE_EQ(schedule.rate(5), 1.1) << name_of(type);
    EXPECT_DOUBLE_EQ(schedule.rate(10), 0.2) << name_of(type);
    EXPECT_DOUBLE_EQ(schedule.rate(15), 0.2) << name_of(type);
  }
}

TEST(LearningRateSchedule, says_where_it_goes_and_when_its_peak_is_reached) {
  const LearningRateSchedule linear{ScheduleType::linear, 1e-3, 6, 10};
  EXPECT_EQ(linear.describe(), "linear, from 0 up to 0.001 in 6 steps, then down to 0 at step 10");
  EXPECT_EQ((LearningRateSchedule{ScheduleType::constant, 1e-3, 6}.describe()), "constant, 0.001");
  EXPECT_EQ((LearningRateSchedule{ScheduleType::warmup_lr, 1e-3, 1}.describe()),
            "WarmupLR, from 0 up to 0.001 in 2 steps, then constant");
  for (const ScheduleType type :
       {ScheduleType::linear, ScheduleType::constant, ScheduleType::constant_with_warmup,
        ScheduleType::warmup_lr, ScheduleType::warmup_decay_lr}) {
    for (const WarmupShape shape : {WarmupShape::linear, WarmupShape::logarithmic}) {
      for (const std::int64_t warmup : {0, 1, 2, 7}) {
        const LearningRateSchedule schedule{type, 1, warmup, 30, shape};
        std::int64_t below = 0;
        while (schedule.rate(below) < 1 - 1e-12) ++below;
        EXPECT_EQ(schedule.updates_below_peak(), below) << schedule.describe();
      }
    }
  }
}

TEST(LearningRateSchedule, names_and_warmup_are_the_trainers) {
  EXPECT_EQ(schedule_type_named("constant_with_warmup"), ScheduleType::constant_with_warmup);
  EXPECT_FALSE(schedule_type_named("polynomial").has_value());
  EXPECT_EQ(warmup_updates(0, 0.03, 101), 4);  // ceil(3.03)
  EXPECT_EQ(warmup_updates(7, 0.03, 101), 7);
  EXPECT_EQ(warmup_updates(0, 0, 101), 0);
}

}  // namespace
}  // namespace terrace::optim
