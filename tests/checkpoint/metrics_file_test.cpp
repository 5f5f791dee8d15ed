#include "terrace/checkpoint/metrics_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "io/temporary_folder.h"
#include "terrace/checkpoint/trainer_state.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kLater = std::numeric_limits<std::int64_t>::max();

std::string line(std::int64_t step, const std::string& more = "") {
  return "{\"step\":" + std::to_string(step) + ",\"loss\":1.5" + more + "}\n";
}

/// A row that a commit carries; its line says so.
KnownRow known(std::int64_t step, std::optional<double> eval_loss = {}) {
  std::string text = line(step, ",\"again\":true");
  text.pop_back();
  StepRow row;
  row.step = step;
  row.loss = 1.5;
  row.eval_loss = eval_loss;
  return {row, text};
}

class MetricsFile : public ::testing::Test {
 protected:
  SettledRows settle(const std::string& before, std::int64_t step,
                     const std::vector<KnownRow>& rows = {}, std::int64_t after = kLater) {
    io::write_file(path_, before);
    return settle_rows(path_, step, rows, after);
  }
  [[nodiscard]] std::string text() const { return io::read_file(path_); }

  terrace::testing::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "metrics.jsonl";
};

TEST_F(MetricsFile, rows_of_later_steps_and_a_torn_line_are_dropped) {
  EXPECT_EQ(settle_rows(path_, 3, {}, kLater).dropped, 0U);
  EXPECT_FALSE(io::is_there(path_)) << "nothing is made of nothing";
  std::string before;
  for (int step = 198; step <= 212; ++step) {
    before += line(step);
    if (step == 200) before += "{\"note\":\"of no step\"}\n";
  }
  const std::string kept = before.substr(0, before.find("{\"step\":201"));
  EXPECT_EQ(settle(before + "{\"step\":213,\"lo", 200).dropped, 13U);
  EXPECT_EQ(text(), kept);
  EXPECT_EQ(settle(kept, 200).dropped, 0U);
  EXPECT_EQ(text(), kept);
  EXPECT_EQ(settle(kept + "{\"step\": 1", 200).dropped, 1U);
  EXPECT_EQ(text(), kept);
}

TEST_F(MetricsFile, what_is_missing_is_put_in_its_place) {
  const std::vector<KnownRow> rows = {known(3), known(4), known(5), known(6)};
  const SettledRows settled = settle(line(1) + line(2) + line(3) + line(5) + "{\"st", 6, rows);
  EXPECT_EQ(settled.restored, 2U);
  EXPECT_EQ(settled.dropped, 1U);
  EXPECT_EQ(text(), line(1) + line(2) + line(3) + line(4, ",\"again\":true") + line(5) +
                        line(6, ",\"again\":true"));
  EXPECT_EQ(settle(text(), 6, rows).restored, 0U);
}

TEST_F(MetricsFile, a_file_that_is_gone_has_what_is_known) {
  const std::vector<KnownRow> rows = {known(5), known(6)};
  EXPECT_EQ(settle_rows(path_, 6, rows, kLater).restored, 2U);
  EXPECT_EQ(text(), line(5, ",\"again\":true") + line(6, ",\"again\":true"));
}

TEST_F(MetricsFile, blocks_that_a_power_cut_left_empty_are_no_rows) {
  const std::vector<KnownRow> rows = {known(2), known(3)};
  const std::string hole(5000, '\0');
  EXPECT_EQ(settle(line(1) + hole + line(3), 3, rows).restored, 2U);
  EXPECT_EQ(text(), line(1) + line(2, ",\"again\":true") + line(3, ",\"again\":true"));
}

TEST_F(MetricsFile, each_step_has_one_row) {
  EXPECT_EQ(settle(line(1) + line(2) + line(2, ",\"second\":1") + line(3), 3).dropped, 1U);
  EXPECT_EQ(text(), line(1) + line(2) + line(3));
}

TEST_F(MetricsFile, a_validation_loss_that_is_known_is_put_back) {
  const std::vector<KnownRow> rows = {known(2, 1.25), known(3)};
  EXPECT_EQ(settle(line(1) + line(2) + line(3), 3, rows).restored, 1U);
  EXPECT_EQ(text(), line(1) + line(2, ",\"eval_loss\":1.25") + line(3));
}

TEST_F(MetricsFile, the_rows_that_are_asked_for_come_back_with_their_values) {
  const std::string full =
      "{\"step\":2,\"epoch\":0.5,\"loss\":null,\"grad_norm\":2.5,\"lr\":0.25,\"tokens\":64,"
      "\"skipped\":1,\"nonfinite\":\"head\",\"eval_loss\":1.75}\n";
  const SettledRows settled = settle(line(1) + full, 2, {}, 1);
  ASSERT_EQ(settled.rows.size(), 1U);
  const StepRow& row = settled.rows[0];
  EXPECT_TRUE(std::isnan(row.loss));
  EXPECT_EQ(row.epoch, 0.5);
  EXPECT_EQ(row.grad_norm, 2.5);
  EXPECT_EQ(row.learning_rate, 0.25);
  EXPECT_EQ(row.tokens, 64);
  EXPECT_EQ(row.skipped, 1);
  EXPECT_EQ(row.nonfinite, "head");
  EXPECT_EQ(row.eval_loss, 1.75);
  ASSERT_TRUE(settled.last);
  EXPECT_EQ(settled.last->step, 2);
  EXPECT_FALSE(settle(line(1) + "{\"note\":1}\n", 2).last) << "the last line is no row";
}

TEST_F(MetricsFile, a_commit_carries_rows_to_the_bit) {
  TrainerState state;
  state.identity.data = {};
  state.rows = {{.step = 7,
                 .epoch = 1.0 / 3,
                 .loss = 0.1,
                 .grad_norm = std::numeric_limits<double>::denorm_min(),
                 .learning_rate = 1e-300,
                 .tokens = 1LL << 60,
                 .skipped = 3,
                 .nonfinite = "model.\"layers\"",
                 .eval_loss = 2.0 / 3},
                StepRow()};
  EXPECT_THAT(parse_trainer_state(to_json(state), "a commit").rows,
              ElementsAre(state.rows[0], state.rows[1]));
}

}  // namespace
}  // namespace terrace::checkpoint
