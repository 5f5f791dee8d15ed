#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "core/parsed_json.h"
#include "io/temporary_folder.h"
#include "program.h"

// What the built program makes of settings, and what it says of them.

namespace terrace::tools {
namespace {

using ::testing::AllOf;
using testing::expect_one_sentence;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Result;
using testing::run;

namespace fs = std::filesystem;

class SettingsOfARun : public ::testing::Test {
 protected:
  SettingsOfARun() {
    std::ofstream text(folder_ / "text.txt");
    for (int number = 1; number <= 4000; ++number) text << number << '\n';
  }

  /// The arguments of a short run of the smallest model into `output`, and more of them.
  [[nodiscard]] std::vector<std::string> arguments(const std::string& output,
                                                   const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"train",
                                    "--model",
                                    "tiny",
                                    "--data",
                                    folder_ / "text.txt",
                                    "--max_length",
                                    "64",
                                    "--per_device_train_batch_size",
                                    "4",
                                    "--output",
                                    folder_ / output};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  [[nodiscard]] Result train(const std::string& output,
                             const std::vector<std::string>& more) const {
    return run(arguments(output, more));
  }

  /// Kills the run at the step, which it has committed by then.
  void kill_at_step(const std::vector<std::string>& all, const fs::path& output,
                    std::size_t step) const {
    const pid_t child = testing::begin(all, folder_ / "out", folder_ / "err");
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (rows(output) < step && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ::kill(child, SIGKILL);
    EXPECT_EQ(testing::exit_code_of(child), 128 + SIGKILL);
  }

  static std::size_t rows(const fs::path& output) {
    std::ifstream file(output / "metrics.jsonl");
    std::size_t count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    return count;
  }

  [[nodiscard]] std::vector<double> rates(const std::string& output) const {
    std::ifstream file(folder_ / output / "metrics.jsonl");
    std::vector<double> found;
    for (std::string line; std::getline(file, line);) {
      found.push_back(terrace::testing::parse_json(line)["lr"]);
    }
    return found;
  }

  terrace::testing::TemporaryFolder folder_;
};

TEST_F(SettingsOfARun, that_goes_on_with_others_are_named_with_both_values) {
  ASSERT_EQ(train("run", {"--learning_rate", "1e-3", "--max_steps", "4"}).code, 0);
  const Result same =
      train("run", {"--learning_rate", "1e-3", "--max_steps", "4", "--resume", "auto"});
  EXPECT_THAT(same.err, Not(HasSubstr("since step")));
  const Result other =
      train("run", {"--learning_rate", "1e-3", "--max_steps", "8", "--resume", "auto",
                    "--warmup_steps", "6", "--min_lr_ratio", "0.5", "--gradient_dtype", "fp32",
                    "--decay_all", "--save_steps", "0"});
  EXPECT_EQ(other.code, 0) << other.err;
  for (const char* line :
       {"max_steps was 4 and is 8", "warmup_steps was 0 and is 6", "min_lr_ratio was 0 and is 0.5",
        "decay_all was false and is true",
        "the learning rate goes on from 0.00025 at step 4 to 0.0006667 at step 5: the schedule was "
        "linear, 0.001, then down to 0 at step 4; it is linear, from 0 up to 0.001 in 6 steps, "
        "then down to 0.0005 at step 8"}) {
    EXPECT_THAT(other.err, HasSubstr(std::string("since step 4: ") + line));
  }
}

TEST_F(SettingsOfARun, that_a_committed_store_cannot_follow_are_refused_by_name) {
  fs::create_directory(folder_ / "swap");
  const std::vector<std::string> on_disk = {"--swap", folder_ / "swap",    "--offload_optimizer",
                                            "nvme",   "--max_steps",       "400",
                                            "--set",  "pacing.compute=3e9"};
  kill_at_step(arguments("run", on_disk), folder_ / "run", 2);
  for (const auto& [flag, value, line] :
       {std::tuple("--moments", "bf16",
                   "optimizer.moments fp32, but optimizer.moments is bf16 now"),
        std::tuple("--sub_group_size", "8192", "sub_group_size was 0 and is 8192")}) {
    std::vector<std::string> changed = on_disk;
    changed.insert(changed.end(), {"--resume", "auto", flag, value});
    const Result refused = train("run", changed);
    expect_one_sentence({refused.code, "", refused.err.substr(refused.err.rfind("terrace: "))}, 2);
    EXPECT_THAT(refused.err, HasSubstr(line));
  }
}

TEST_F(SettingsOfARun, of_deepspeed_never_fall_below_the_floor_of_its_warm_up) {
  std::ofstream(folder_ / "ds.json")
      << R"({"train_micro_batch_size_per_gpu": 4, "scheduler": {"type": "WarmupDecayLR", "params":
             {"warmup_min_lr": 1e-4, "warmup_max_lr": 1e-3, "warmup_num_steps": 3,
              "warmup_type": "linear", "total_num_steps": 10}}})";
  const Result result =
      train("run", {"--deepspeed", folder_ / "ds.json", "--max_steps", "12", "--save_steps", "0"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<double> found = rates("run");
  const std::vector<double> shares = {0,       0,       1.0 / 3, 2.0 / 3, 1,       6.0 / 7,
                                      5.0 / 7, 4.0 / 7, 3.0 / 7, 2.0 / 7, 1.0 / 7, 0};
  ASSERT_EQ(found.size(), shares.size());
  for (std::size_t step = 0; step < found.size(); ++step) {
    EXPECT_NEAR(found[step], 1e-4 + 9e-4 * shares[step], 1e-12) << step + 1;
  }
  EXPECT_THAT(result.err, AllOf(HasSubstr("WarmupDecayLR, from 0.0001 up to 0.001 in 3 steps, then "
                                          "down to 0.0001 at step 10"),
                                HasSubstr("has decayed to 0.0001 at step 10")));
}

TEST_F(SettingsOfARun, have_their_schedule_in_the_start_table_and_a_peak_out_of_reach_is_told) {
  const Result result = train("run", {"--learning_rate", "1e-3", "--max_steps", "4",
                                      "--warmup_steps", "6", "--save_steps", "0", "--dry_run"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("linear, from 0 up to 0.001 in 6 steps"));
  EXPECT_THAT(result.err, HasSubstr("warning: the learning rate never reaches its peak of 0.001: "
                                    "the warm-up takes 6 steps, and the run has 4 steps"));
}

TEST_F(SettingsOfARun, that_no_number_can_count_are_refused) {
  for (const auto& [flag, value, named] :
       {std::tuple("--num_train_epochs", "1e17", "num_train_epochs is 1e+17"),
        std::tuple("--max_steps", "1e15", "--max_steps"),
        std::tuple("--max_steps", "9223372036854775807", "--max_steps")}) {
    const Result result =
        train("run", {flag, value, "--gradient_accumulation_steps", "4096", "--dry_run"});
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(named));
  }
}

TEST(Bench, takes_a_count_in_millions) {
  const Result result =
      run({"bench", "optimizer", "--parameters", "1M", "--repetitions", "1", "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
}

}  // namespace
}  // namespace terrace::tools
