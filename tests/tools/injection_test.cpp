// The tool itself: what it counts and strikes is what was ordered.
#include "injection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

namespace terrace::tools::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class InjectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    static const std::string reason = Injected::unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
    std::ofstream data(folder_ / "text.txt");
    for (int i = 0; i < 2000; ++i) data << i << '\n';
  }

  [[nodiscard]] std::vector<std::string> training() const {
    return {"train",
            "--model",
            "tiny",
            "--data",
            folder_ / "text.txt",
            "--max_length",
            "32",
            "--per_device_train_batch_size",
            "2",
            "--max_steps",
            "2",
            "--threads",
            "1",
            "--output",
            output()};
  }
  [[nodiscard]] std::string output() const { return folder_ / "run"; }

  terrace::testing::TemporaryFolder folder_;
};

TEST_F(InjectionTest, counts_what_is_below_the_folders_and_the_same_each_time) {
  const Injection counting{.calls = {"rename"}, .below = {output()}};
  const Injected first(counting), second(counting),
      elsewhere({.calls = {"rename"}, .below = {"/proc"}});
  for (const Injected* injected : {&first, &second, &elsewhere}) {
    const Result result = run(training(), injected->surroundings());
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(injected->installed());
    EXPECT_FALSE(injected->struck());
    fs::remove_all(output());
  }
  EXPECT_GE(first.seen(), 3U);  // run.json twice, the checkpoint
  EXPECT_EQ(first.seen(), second.seen());
  EXPECT_EQ(elsewhere.seen(), 0U);
}

TEST_F(InjectionTest, the_chosen_call_fails_and_no_other) {
  const Injected injected({.calls = {"rename"}, .below = {output()}, .nth = 2, .error = EROFS});
  const Result result = run(training(), injected.surroundings());
  EXPECT_EQ(result.code, 5) << result.err;
  EXPECT_THAT(result.err, HasSubstr("EROFS"));
  EXPECT_TRUE(injected.struck());
  EXPECT_GE(injected.seen(), 2U);
  EXPECT_THAT(injected.place(), StartsWith("rename " + output()));
}

TEST_F(InjectionTest, the_process_is_killed_before_or_after_the_call) {
  for (const Strike strike : {Strike::killed_before, Strike::killed_after}) {
    fs::remove_all(output());
    // The lock takes its name first.
    const Injected injected({.calls = {"rename"}, .below = {output()}, .nth = 2, .strike = strike});
    EXPECT_EQ(run(training(), injected.surroundings()).code, 128 + SIGKILL);
    EXPECT_THAT(injected.place(), EndsWith("run.json")) << injected.place();
    EXPECT_EQ(fs::exists(output() + "/run.json"), strike == Strike::killed_after);
  }
}

TEST_F(InjectionTest, calls_of_a_library_on_a_ring_are_seen) {
  const std::string swap = folder_ / "swap";
  fs::create_directory(swap);
  std::vector<std::string> arguments = training();
  arguments.insert(arguments.end(), {"--offload_optimizer", "nvme", "--swap", swap});
  const Injected injected({.calls = {"io_uring_enter"}});
  const Result result = run(arguments, injected.surroundings());
  EXPECT_EQ(result.code, 0) << result.err;
  if (result.err.find("io_uring is refused") != std::string::npos) {
    GTEST_SKIP() << "io_uring is refused here";
  }
  EXPECT_GT(injected.seen(), 2U);
}

}  // namespace
}  // namespace terrace::tools::testing
