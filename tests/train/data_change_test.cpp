#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "train/training.h"

// Data that changes under a run, or only looks so.

namespace terrace::train::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

class DataChangeTest : public TrainingTest {
 protected:
  DataChangeTest() { write(folder_ / "held-out.txt", text(100, 9)); }

  /// Ten steps with an evaluation at the third and at the last.
  [[nodiscard]] config::Settings watched(const std::string& output) const {
    config::Settings settings = this->settings(output);
    settings.length.max_steps = 10;
    settings.data.eval_files = {folder_ / "held-out.txt"};
    settings.cadence.eval_steps = 3;
    return settings;
  }
  /// The run, where `change` is called after the third step.
  [[nodiscard]] static Result changed_after_three(const config::Settings& settings,
                                                  const std::function<void()>& change) {
    return train_run(settings, [&](const std::string& line, std::atomic<int>&) {
      if (line.starts_with("step 3: validation loss")) change();
    });
  }
  static void make_later(const fs::path& file) {
    fs::last_write_time(file, fs::file_time_type::clock::now() + std::chrono::hours(1));
  }
};

TEST_F(DataChangeTest, a_touched_file_changes_nothing) {
  const std::vector<Row> reference = run(watched("reference"));
  const config::Settings settings = watched("touched");
  const Result result = changed_after_three(settings, [&] {
    for (const char* name : {"one.txt", "two.txt", "held-out.txt"}) make_later(folder_ / name);
  });
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(rows(settings.output.folder), ElementsAreArray(reference));
}

TEST_F(DataChangeTest, a_changed_file_ends_the_run_with_its_steps_kept) {
  const std::vector<Row> reference = run(watched("reference"));
  const std::string good = read(folder_ / "one.txt");
  for (const config::Placement state : {config::Placement::none, config::Placement::nvme}) {
    config::Settings settings = watched(state == config::Placement::none ? "saved" : "committed");
    settings.placement.optimizer.device = state;
    Result result = changed_after_three(settings, [&] {
      write(folder_ / "one.txt", text(210, 5));
      make_later(folder_ / "one.txt");
    });
    EXPECT_EQ(result.code, 4);
    EXPECT_THAT(result.error,
                AllOf(HasSubstr((folder_ / "one.txt").string() + " was changed"),
                      HasSubstr("put back what it was"), HasSubstr("after step 3"),
                      HasSubstr(state == config::Placement::none ? "saved" : "committed"),
                      HasSubstr("go on with --resume auto")));
    write(folder_ / "one.txt", good);
    settings.output.resume = "auto";
    result = train_run(settings);
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_THAT(rows(settings.output.folder), ElementsAreArray(reference));
  }
}

TEST_F(DataChangeTest, a_changed_file_to_evaluate_on_costs_no_step) {
  const config::Settings settings = watched("run");
  const Result result =
      changed_after_three(settings, [&] { write(folder_ / "held-out.txt", "short"); });
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.error, AllOf(HasSubstr("held-out.txt"), HasSubstr("100 bytes and has 5"),
                                  HasSubstr("after step 6, which is saved")));
  EXPECT_EQ(rows(settings.output.folder).size(), 6U);
  EXPECT_TRUE(fs::exists(folder_ / "run" / "checkpoint-6"));
}

}  // namespace
}  // namespace terrace::train::testing
