#include "resume_point.h"

#include <gtest/gtest.h>

#include <csignal>

#include "engine/training.h"

namespace terrace::engine::testing {
namespace {

namespace fs = std::filesystem;

class ResumePointTest : public TrainingTest {};

TEST_F(ResumePointTest, scratch_of_a_dead_run_is_free_once_and_not_again_with_its_store) {
  Settings settings = this->settings("run");
  settings.placement.optimizer.device = Placement::nvme;
  settings.cadence.save_steps = 2;
  const Result stopped = train_run(settings, [](const std::string& line, auto& signal) {
    if (line.find("saved ") == 0) signal = SIGTERM;
  });
  ASSERT_EQ(stopped.code, 143) << stopped.error;
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
    ASSERT_TRUE(point.replaced.has_value());
    // A run that overwrites does not open the store, and so leaves the scratch for later too.
    EXPECT_EQ(fs::exists(left[0].path / "scratch"), overwrites);
    EXPECT_NEAR(static_cast<double>(point.freed_bytes(settings.placement)),
                static_cast<double>(left[0].bytes + (overwrites ? kScratchBytes : 0)), 64 << 10);
  }
}

}  // namespace
}  // namespace terrace::engine::testing
