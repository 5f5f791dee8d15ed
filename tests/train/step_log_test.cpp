#include "step_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/parsed_json.h"
#include "io/temporary_folder.h"
#include "terrace/io/file.h"

namespace terrace::train {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

checkpoint::StepRow row(std::int64_t step) {
  return {.step = step, .epoch = 0.5, .loss = 1.0 / static_cast<double>(step), .tokens = 64};
}

std::vector<std::int64_t> steps_of(const std::vector<checkpoint::StepRow>& rows) {
  std::vector<std::int64_t> steps;
  for (const auto& each : rows) steps.push_back(each.step);
  return steps;
}

class StepLogTest : public ::testing::Test {
 protected:
  [[nodiscard]] StepLog open(std::int64_t step,
                             const std::vector<checkpoint::StepRow>& carried = {}) const {
    return StepLog(path_, plan_, step, carried, 0);
  }
  void write(StepLog& log, std::int64_t step) const { log.write(row(step), {times_, 0.5, 1e9}); }

  /// The file's rows.
  [[nodiscard]] std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> rows;
    const std::string text = io::read_file(path_);
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      rows.push_back(terrace::testing::parse_json(text.substr(begin, end - begin)));
      begin = end + 1;
    }
    return rows;
  }

  terrace::testing::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "metrics.jsonl";
  plan::Plan plan_;
  runtime::StepTimes times_;
};

TEST_F(StepLogTest, a_commit_carries_every_row_that_is_not_durable_and_never_more_than_it_may) {
  StepLog log = open(0);
  std::size_t most = 0;
  for (std::int64_t step = 1; step <= 200; ++step) {
    // Commits run ahead of rows by the steps under way.
    const auto carried = log.commit(row(step));
    EXPECT_EQ(carried.back().step, step);
    for (std::size_t i = 1; i < carried.size(); ++i) {
      ASSERT_EQ(carried[i].step, carried[i - 1].step + 1);
    }
    most = std::max(most, carried.size());
    if (step > plan::kStepsInFlight) write(log, step - plan::kStepsInFlight);
  }
  EXPECT_LE(most, StepLog::kCarriedMax);
  EXPECT_GT(most, StepLog::kUnsyncedMax);
}

TEST_F(StepLogTest, what_was_lost_is_written_again_with_the_same_keys) {
  std::vector<checkpoint::StepRow> carried;
  {
    StepLog log = open(0);
    for (std::int64_t step = 1; step <= 5; ++step) {
      carried = log.commit(row(step));
      write(log, step);
    }
  }
  const std::vector<nlohmann::json> before = lines();
  const std::string text = io::read_file(path_);
  io::write_file(path_, text.substr(0, text.size() / 2));  // a power cut
  StepLog log = open(5, carried);
  EXPECT_EQ(log.settled().restored, 3U);
  const std::vector<nlohmann::json> after = lines();
  ASSERT_THAT(after, SizeIs(5));
  for (std::size_t i = 0; i < 5; ++i) {
    for (const char* key : {"step", "epoch", "loss", "grad_norm", "lr", "tokens", "skipped"}) {
      EXPECT_EQ(after[i].at(key), before[i].at(key)) << key;
    }
    std::vector<std::string> keys, keys_before;
    for (const auto& [key, value] : after[i].items()) keys.push_back(key);
    for (const auto& [key, value] : before[i].items()) keys_before.push_back(key);
    EXPECT_EQ(keys, keys_before);
  }
  EXPECT_TRUE(after[4].at("step_seconds").is_null());
  EXPECT_TRUE(after[4].at("busy_seconds").at("compute").is_null());
  EXPECT_FALSE(after[0].at("step_seconds").is_null());
}

TEST_F(StepLogTest, a_validation_loss_joins_its_row_and_the_commits_to_come_have_it) {
  StepLog log = open(0);
  for (std::int64_t step = 1; step <= 2; ++step) {
    (void)log.commit(row(step));
    write(log, step);
  }
  log.sync();
  log.add_evaluation(0.25);
  EXPECT_EQ(lines()[1].at("eval_loss"), 0.25);
  EXPECT_FALSE(lines()[0].contains("eval_loss"));
  const auto carried = log.commit(row(3));
  EXPECT_THAT(steps_of(carried), ElementsAre(2, 3)) << "its line has changed since the sync";
  EXPECT_EQ(carried[0].eval_loss, 0.25);
  write(log, 3);
  ASSERT_THAT(lines(), SizeIs(3));
  EXPECT_EQ(lines()[1].at("eval_loss"), 0.25);
}

TEST_F(StepLogTest, a_row_that_a_kill_left_without_its_validation_loss_can_still_be_given_it) {
  {
    StepLog log = open(0);
    for (std::int64_t step = 1; step <= 3; ++step) write(log, step);
  }
  StepLog log = open(3);
  ASSERT_TRUE(log.last());
  EXPECT_EQ(log.last()->step, 3);
  EXPECT_FALSE(log.last()->eval_loss);
  log.add_evaluation(0.5);
  EXPECT_EQ(lines()[2].at("eval_loss"), 0.5);
  EXPECT_FALSE(open(4).last()) << "step 4 has no row";
}

}  // namespace
}  // namespace terrace::train
