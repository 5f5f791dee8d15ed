#include "pace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "core/parsed_json.h"
#include "train/training.h"

namespace terrace::runtime::testing {
namespace {
using train::testing::Row;
using train::testing::TrainingTest;

using ::testing::ElementsAreArray;

TEST(Pace, work_follows_work_on_the_link_and_idle_time_is_lost) {
  Pace pace(1e6);  // a unit a microsecond
  EXPECT_EQ(pace.put(100, 1000), 1100);
  EXPECT_EQ(pace.put(50, 1000), 1150) << "behind the first";
  EXPECT_EQ(pace.put(50, 1200), 1250) << "the link was idle until then";
}

TEST(Pace, what_a_sleep_was_too_long_is_made_good_once) {
  Pace pace(1e6);
  EXPECT_EQ(pace.put(100, 0), 100);
  pace.woke(100, 160);
  EXPECT_EQ(pace.put(100, 165), 205) << "5 us passed between, the 60 us late do not count";
  EXPECT_EQ(pace.put(100, 305), 405);
}

TEST(Pace, parts_of_a_microsecond_add_up) {
  Pace pace(3e6);
  std::int64_t due = 0;
  for (int piece = 0; piece < 3000; ++piece) due = pace.put(1, 0);
  EXPECT_EQ(due, 1000);
}

class PacedRunTest : public TrainingTest {};

TEST_F(PacedRunTest, rates_change_no_number_and_hold_every_lane) {
  config::Settings settings = this->settings("free");
  settings.placement.parameters.device = config::Placement::cpu;
  settings.placement.optimizer.device = config::Placement::nvme;
  settings.length.max_steps = 3;
  const std::vector<Row> reference = run(settings);
  settings.output.folder = folder_ / "paced";
  // About 50 KB of parameters and 150 KB of state: every lane works for some 40 ms a step.
  settings.pacing = {10'000'000, 2'000'000, 5'000'000, 5'000'000, 10'000'000, 1e9};
  EXPECT_THAT(run(settings), ElementsAreArray(reference));

  // What a held lane is busy has a lower bound that no machine is too slow for: each task lasts
  // until its work is through at the rate. Over all steps, as one may begin with what a sleep of
  // the step before was too long; a thousandth is the clock's whole microseconds.
  std::map<std::string, double> busy;
  std::ifstream file(folder_ / "paced" / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto row = terrace::testing::parse_json(line);
    for (const auto& [lane, seconds] : row.at("busy_seconds").items()) {
      busy[lane] += seconds.get<double>();
    }
  }
  const auto work = terrace::testing::read_json(folder_ / "paced" / "run.json").at("work_per_step");
  const auto expect_held = [&](const char* lane, auto rate) {
    const double seconds = 3 * work.at(lane).get<double>() / static_cast<double>(rate);
    EXPECT_GT(seconds, 0.01) << lane;
    EXPECT_GE(busy[lane], 0.999 * seconds) << lane;
  };
  expect_held("compute", settings.pacing.compute);
  expect_held("h2d", settings.pacing.h2d);
  expect_held("d2h", settings.pacing.d2h);
  expect_held("disk_read", settings.pacing.disk_read);
  expect_held("disk_write", settings.pacing.disk_write);
  expect_held("optimizer", settings.pacing.optimizer);
}

}  // namespace
}  // namespace terrace::runtime::testing
