#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "program.h"
#include "training_run.h"

// What becomes of what the program is about when a signal asks it to stop.

namespace terrace::tools::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class SignalsTest : public TrainingRunTest {
 protected:
  /// Starts the program, waits for words in its log, sends the signal, and waits for the end.
  [[nodiscard]] Result stop(const std::vector<std::string>& arguments, const std::string& words,
                            int signal, const Surroundings& surroundings = {}) const {
    const std::string out = folder_ / "out";
    const std::string err = folder_ / "err";
    const pid_t child = begin(arguments, out, err, surroundings);
    EXPECT_TRUE(comes_true([&] { return text_of("err").find(words) != std::string::npos; }))
        << words;
    ::kill(child, signal);
    Result result;
    result.code = exit_code_of(child);
    result.out = read_and_remove(out);
    result.err = read_and_remove(err);
    return result;
  }
  /// Nothing of the kind that is renamed or removed at the end of a save or a measurement.
  void expect_no_leftovers() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
      const std::string name = entry.path().filename();
      EXPECT_THAT(name, AllOf(Not(HasSubstr("tmp")), Not(HasSubstr("lock")),
                              Not(HasSubstr("terrace-run")), Not(HasSubstr("raw"))))
          << entry.path();
    }
  }
  void make_swap() const { std::filesystem::create_directory(folder_ / "swap"); }
  /// A model to evaluate.
  void train_a_model() const { EXPECT_EQ(run(train("model", 1, {"--save_steps", "0"})).code, 0); }
};

TEST_F(SignalsTest, every_signal_that_asks_to_stop_saves) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string output = "run" + std::to_string(signal);
    const Result result = stop(train(output, 100'000), "step 3/", signal);
    EXPECT_EQ(result.code, 128 + signal) << result.err;
    EXPECT_TRUE(has(output + "/checkpoint-" + std::to_string(rows(output)))) << result.err;
    EXPECT_THAT(result.err, HasSubstr("go on with --resume auto"));
    expect_no_leftovers();
  }
}

TEST_F(SignalsTest, a_signal_that_was_ignored_at_the_start_stays_ignored) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string output = "run" + std::to_string(signal);
    const Surroundings ignoring = {.prepare = [signal] { std::signal(signal, SIG_IGN); }};
    const Result result = stop(train(output, 30), "step 2/", signal, ignoring);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(rows(output), 30);
  }
}

TEST_F(SignalsTest, an_evaluation_in_a_run_is_cut_short_and_its_step_is_saved) {
  // A minute of it.
  const std::vector<std::string> slow = {"--eval_data", folder_ / "text.txt", "--eval_steps", "2",
                                         "--set",       "pacing.compute=1e8"};
  const Result result = stop(train("run", 4, slow), "evaluating after step 2", SIGTERM);
  EXPECT_EQ(result.code, 128 + SIGTERM) << result.err;
  EXPECT_TRUE(has("run/checkpoint-2")) << result.err;
  EXPECT_EQ(rows("run"), 2);
  EXPECT_THAT(text_of("run/metrics.jsonl"), Not(HasSubstr("eval_loss")));
  EXPECT_THAT(result.err, AllOf(HasSubstr("after step 2, which is saved"), Not(HasSubstr("0 ms"))));
}

TEST_F(SignalsTest, loading_is_cut_short_and_leaves_no_store) {
  make_swap();
  const std::vector<std::string> on_disk = {"--model", "small",  "--offload_optimizer",
                                            "nvme",    "--swap", folder_ / "swap"};
  std::vector<std::string> arguments = train("run", 4, on_disk);
  const auto preset = std::ranges::find(arguments, "tiny");
  arguments.erase(preset - 1, preset + 1);
  const Result result = stop(arguments, "Memory\n", SIGTERM);
  EXPECT_EQ(result.code, 128 + SIGTERM);
  EXPECT_THAT(result.err, HasSubstr("no step was made"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "swap"));
  expect_no_leftovers();
}

TEST_F(SignalsTest, a_store_without_a_commit_goes_when_its_run_is_stopped) {
  make_swap();
  const std::vector<std::string> activations = {"--offload_activations", "nvme", "--swap",
                                                folder_ / "swap"};
  const Result result = stop(train("run", 100'000, activations), "step 2/", SIGTERM);
  EXPECT_EQ(result.code, 128 + SIGTERM) << result.err;
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "swap"));
}

TEST_F(SignalsTest, evaluate_and_generate_stop_with_a_sentence) {
  train_a_model();
  // As much as takes minutes.
  const std::string tokens = folder_ / "text.txt";
  { std::ofstream(tokens) << std::string(50'000'000, 'a'); }
  const Result evaluated =
      stop({"evaluate", "--model", folder_ / "model", "--data", tokens}, "evaluating (", SIGINT);
  EXPECT_EQ(evaluated.code, 128 + SIGINT);
  EXPECT_THAT(evaluated.out, IsEmpty());
  EXPECT_THAT(evaluated.err, HasSubstr("terrace: stopped by signal 2 while evaluating\n"));
  const std::string out = folder_ / "text";
  const pid_t child = begin({"generate", "--model", folder_ / "model", "--max_new_tokens",
                             "100000000", "--stop_at_end", "false"},
                            out, folder_ / "err");
  EXPECT_TRUE(comes_true([&] { return text_of("text").size() > 10; }));
  ::kill(child, SIGTERM);
  EXPECT_EQ(exit_code_of(child), 128 + SIGTERM);
  EXPECT_THAT(text_of("err"), HasSubstr("terrace: stopped by signal 15 while generating\n"));
}

TEST_F(SignalsTest, generate_stops_while_it_waits_for_its_reader) {
  train_a_model();
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(::fcntl(reader, F_SETPIPE_SZ, 4096), 4096);
  const pid_t child = begin({"generate", "--model", folder_ / "model", "--max_new_tokens",
                             "100000000", "--stop_at_end", "false"},
                            pipe, folder_ / "err");
  // It writes no more: its reader sleeps.
  int before = 0;
  int looks = 0;
  EXPECT_TRUE(comes_true([&] {
    int bytes = 0;
    (void)::ioctl(reader, FIONREAD, &bytes);
    looks = bytes > 0 && bytes == before ? looks + 1 : 0;
    before = bytes;
    return looks > 100;
  }));
  ::kill(child, SIGTERM);
  EXPECT_EQ(exit_code_of(child), 128 + SIGTERM);
  ::close(reader);
}

TEST_F(SignalsTest, measurements_stop_and_leave_nothing) {
  make_swap();
  const std::vector<std::pair<std::string, std::vector<std::string>>> benches = {
      {"measuring copies", {"copy", "--size", "1M"}},
      {"measuring the optimizer", {"optimizer", "--parameters", "10000"}},
      {"measuring forward and backward",
       {"compute", "--model", "tiny", "--rows", "1", "--sequence", "16"}},
      {"measuring the drives",
       {"disk", "--path", folder_ / "swap", "--size", "8M", "--buffered", "--raw"}},
      {"measuring copies\n",
       {"all", "--profile", folder_ / "node.json", "--model", "tiny", "--rows", "1", "--sequence",
        "16", "--parameters", "10000"}},
  };
  for (const auto& [words, options] : benches) {
    std::vector<std::string> arguments = {"bench"};
    arguments.insert(arguments.end(), options.begin(), options.end());

    arguments.insert(arguments.end(), {"--repetitions", "1000000000"});
    const Result result = stop(arguments, words, SIGTERM);
    EXPECT_EQ(result.code, 128 + SIGTERM) << words << result.err;
    EXPECT_THAT(result.err, HasSubstr("terrace: stopped by signal 15 while measuring")) << words;
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_TRUE(std::filesystem::is_empty(folder_ / "swap"));
    EXPECT_FALSE(has("node.json"));
    expect_no_leftovers();
  }
}

}  // namespace
}  // namespace terrace::tools::testing
