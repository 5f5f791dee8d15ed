#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "program.h"
#include "training_run.h"

// Data, output and swap in one another: what runs have written is no data, whoever looks.

namespace terrace::tools {
namespace {

namespace fs = std::filesystem;
using testing::begin;
using testing::exit_code_of;
using ::testing::HasSubstr;
using testing::Result;
using testing::run;

class OwnFilesTest : public testing::TrainingRunTest {
 protected:
  OwnFilesTest() {
    for (int i = 0; i < 20; ++i) {
      fs::create_directory(folder_ / "c");
      std::ofstream(folder_ / ("c/" + std::to_string(i) + ".txt")) << std::string(200, 'a');
    }
  }
  /// A run with the folder c as its data.
  [[nodiscard]] std::vector<std::string> on_folder(const std::string& output, int steps,
                                                   std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"--data", folder_ / "c", "--save_steps", "2"});
    std::vector<std::string> arguments = train(output, steps, more);
    // The text of every other test gives way to the folder.
    const auto data = std::ranges::find(arguments, "--data");
    arguments.erase(data, data + 2);
    return arguments;
  }
  static std::vector<std::string> resumed(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--resume", "auto"});
    return arguments;
  }
};

TEST_F(OwnFilesTest, a_run_below_its_data_is_resumed_and_says_what_it_passes_over) {
  Result result = run(on_folder("c/run", 4));
  EXPECT_EQ(result.code, 0) << result.err;
  result = run(resumed(on_folder("c/run", 8)));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("skipped: written by Terrace itself"));
  EXPECT_EQ(rows("c/run"), 8);
  // By other names of the same places, and for whom it is another run's output.
  fs::create_directory_symlink(folder_ / "c", folder_ / "link");
  result = run(resumed(on_folder("link/../c/./run/", 10)));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(rows("c/run"), 10);
  result = run(on_folder("other", 2));
  EXPECT_EQ(result.code, 0) << result.err;
  result = run(
      {"evaluate", "--model", folder_ / "c/run", "--data", folder_ / "c", "--max_length", "16"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("over 4019 tokens")) << "20 files of 201 tokens, but for one";
}

TEST_F(OwnFilesTest, a_run_whose_data_lies_in_its_output_keeps_to_the_users_files) {
  Result result = run(on_folder("c", 4, {"--overwrite_output_dir"}));
  EXPECT_EQ(result.code, 0) << result.err;
  result = run(resumed(on_folder("c", 8)));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(rows("c"), 8);
  result = run(on_folder("c", 2, {"--overwrite_output_dir"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(rows("c"), 2);
  EXPECT_TRUE(has("c/19.txt"));
}

TEST_F(OwnFilesTest, output_and_swap_below_the_data_change_nothing_after_a_kill) {
  fs::create_directory(folder_ / "c/swap");
  const std::vector<std::string> arguments =
      on_folder("c/run", 6,
                {"--offload_optimizer", "nvme", "--swap", folder_ / "c/swap", "--save_steps", "0"});
  std::vector<std::string> slow = arguments;
  slow.insert(slow.end(), {"--set", "pacing.compute=3e8"});
  // Its log lies there too, and grows.
  const pid_t child = begin(slow, folder_ / "c/out", folder_ / "c/log");
  ASSERT_TRUE(has_rows("c/run", 2));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(exit_code_of(child), 128 + SIGKILL);
  fs::remove(folder_ / "c/log");
  const Result result = run(resumed(arguments));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("from the committed store"));
  EXPECT_EQ(rows("c/run"), 6);
}

TEST_F(OwnFilesTest, leftovers_go_and_copies_stay) {
  ASSERT_EQ(run(on_folder("run", 4)).code, 0);
  fs::create_directory(folder_ / "run/checkpoint-6.tmp-1");
  std::ofstream(folder_ / "run/checkpoint-6.tmp-1/model.safetensors") << std::string(100, 'x');
  std::ofstream(folder_ / "run/run.json.terrace-tmp-1-0") << "{";
  for (const char* copy : {"run/checkpoint-0003", "run/checkpoint-4-copy"}) {
    fs::copy(folder_ / "run/checkpoint-4", folder_ / copy, fs::copy_options::recursive);
  }
  const Result result = run(resumed(on_folder("run", 8)));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_FALSE(has("run/checkpoint-6.tmp-1"));
  EXPECT_FALSE(has("run/run.json.terrace-tmp-1-0"));
  for (const char* there : {"checkpoint-0003", "checkpoint-4-copy", "checkpoint-6", "checkpoint-8"})
    EXPECT_TRUE(has(std::string("run/") + there)) << there;
  EXPECT_FALSE(has("run/checkpoint-4"));
}

}  // namespace
}  // namespace terrace::tools
