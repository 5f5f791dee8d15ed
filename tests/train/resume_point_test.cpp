#include "resume_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <csignal>

#include "config/parse.h"
#include "terrace/checkpoint/checkpoint_folder.h"
#include "train/training.h"

namespace terrace::train::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ResumePointTest : public TrainingTest {
 protected:
  /// Of a run whose optimizer state is in a store, and which saves every other step.
  [[nodiscard]] config::Settings with_store() const {
    config::Settings settings = this->settings("run");
    settings.placement.optimizer.device = config::Placement::nvme;
    settings.cadence.save_steps = 2;
    return settings;
  }
  /// Runs until the first checkpoint is written; the store stays.
  static void stop_as_it_saves(const config::Settings& settings) {
    const Result stopped = train_run(settings, [](const std::string& line, auto& signal) {
      if (line.find("saved ") == 0) signal = SIGTERM;
    });
    ASSERT_EQ(stopped.code, 143) << stopped.error;
  }
};

TEST_F(ResumePointTest, scratch_of_a_dead_run_is_free_once_and_not_again_with_its_store) {
  config::Settings settings = with_store();
  stop_as_it_saves(settings);
  const std::vector<io::RunRecord> left = io::list_run_folders(folder_ / "swap");
  ASSERT_EQ(left.size(), 1U);
  constexpr std::size_t kScratchBytes = 3 << 20;
  write(left[0].path / "scratch", std::string(kScratchBytes, 'x'));
  Log log([](LogLevel, std::string_view) {});
  for (const bool overwrites : {true, false}) {
    settings.output.overwrite = overwrites;
    settings.output.resume = overwrites ? "" : (folder_ / "run" / "checkpoint-2").string();
    const OutputFolder output(settings.output, log);
    const ResumePoint point = find_resume_point(settings, output, log);
    ASSERT_EQ(point.replaced.size(), 1U);
    // A run that overwrites does not open the store, and so leaves the scratch for later too.
    EXPECT_EQ(fs::exists(left[0].path / "scratch"), overwrites);
    EXPECT_NEAR(static_cast<double>(point.freed_bytes(settings.placement)),
                static_cast<double>(left[0].bytes + (overwrites ? kScratchBytes : 0)), 64 << 10);
  }
}

TEST_F(ResumePointTest, a_store_that_is_gone_is_not_taken_for_none) {
  config::Settings settings = with_store();
  stop_as_it_saves(settings);
  fs::remove_all(io::list_run_folders(folder_ / "swap").at(0).path);
  settings.output.resume = "auto";
  Log log([](LogLevel, std::string_view) {});
  {
    const OutputFolder output(settings.output, log);
    EXPECT_EQ(find_resume_point(settings, output, log).state.global_step, 2) << "nothing is lost";
  }
  fs::remove_all(folder_ / "run" / "checkpoint-2");
  const OutputFolder output(settings.output, log);
  EXPECT_THAT(config::usage_error([&] { (void)find_resume_point(settings, output, log); }),
              ::testing::AllOf(HasSubstr("step 2"), HasSubstr((folder_ / "swap").string())));
}

TEST_F(ResumePointTest, a_store_that_is_gone_is_made_up_for_by_a_checkpoint_with_a_word) {
  config::Settings settings = with_store();
  settings.length.max_steps = 2;
  ASSERT_EQ(train_run(settings).code, 0);
  settings.output.resume = "auto";
  std::vector<std::string> lines;
  Log log([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  EXPECT_EQ(find_resume_point(settings, OutputFolder(settings.output, log), log).state.global_step,
            2);
  EXPECT_THAT(lines, ::testing::Not(::testing::Contains(HasSubstr("where there is none"))))
      << "it has ended";
  // The finished run goes on, is stopped, and its drive is gone.
  settings.length.max_steps = 8;
  stop_as_it_saves(settings);
  fs::remove_all(folder_ / "run" / "checkpoint-4");
  fs::remove_all(io::list_run_folders(folder_ / "swap").at(0).path);
  EXPECT_EQ(find_resume_point(settings, OutputFolder(settings.output, log), log).state.global_step,
            2);
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("going on from step 2")));
}

TEST_F(ResumePointTest, a_store_whose_removal_was_cut_short_is_none_and_stands_in_no_way) {
  config::Settings settings = with_store();
  stop_as_it_saves(settings);
  settings.output.resume = "auto";
  Log log([](LogLevel, std::string_view) {});
  const OutputFolder output(settings.output, log);
  const fs::path run = io::list_run_folders(folder_ / "swap").at(0).path;
  fs::copy(run, folder_ / "kept", fs::copy_options::recursive);
  const std::size_t steps = io::removal_order(std::array{run}).size();
  ASSERT_EQ(steps, 4U) << "manifest, pages, lock, folder";
  for (std::size_t done = 0; done <= steps; ++done) {
    SCOPED_TRACE(done);
    fs::remove_all(run);
    fs::copy(folder_ / "kept", run, fs::copy_options::recursive);
    const auto order = io::removal_order(std::array{run});
    for (std::size_t i = 0; i < done; ++i) fs::remove(order[i]);

    ResumePoint point = find_resume_point(settings, output, log);
    EXPECT_GE(point.state.global_step, 2);
    EXPECT_EQ(point.store != nullptr, done == 0);
    EXPECT_EQ(point.checkpoint != nullptr, done > 0);
    EXPECT_EQ(!point.replaced.empty(), done == 1 || done == 2) << "while it says whose it is";
    point.remove_replaced(log);
    EXPECT_EQ(fs::exists(run), done == 0 || done == 3) << "which 'swap ls' lists";
  }
  // Without a checkpoint, what it had committed is lost, and that is said.
  fs::copy(folder_ / "kept", run, fs::copy_options::recursive);
  fs::remove(io::removal_order(std::array{run}).front());
  fs::remove_all(folder_ / "run" / "checkpoint-2");
  EXPECT_THAT(config::usage_error([&] { (void)find_resume_point(settings, output, log); }),
              AllOf(HasSubstr("a part of one alone"), Not(HasSubstr("mount"))));
}

TEST_F(ResumePointTest, a_later_checkpoint_that_is_broken_is_passed_over_with_a_word) {
  config::Settings settings = this->settings("run");
  settings.cadence.save_steps = 1;
  ASSERT_EQ(train_run(settings).code, 0);
  const auto list = checkpoint::list_checkpoints(folder_ / "run");
  ASSERT_GE(list.complete.size(), 2U);
  fs::resize_file(list.complete[0].folder / "model.safetensors", 100);
  settings.output.resume = "auto";
  std::vector<std::string> lines;
  Log log([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  const OutputFolder output(settings.output, log);
  EXPECT_EQ(find_resume_point(settings, output, log).state.global_step, list.complete[1].step);
  EXPECT_THAT(lines, ::testing::Contains(
                         HasSubstr((list.complete[0].folder / "model.safetensors").string())));
}

}  // namespace
}  // namespace terrace::train::testing
