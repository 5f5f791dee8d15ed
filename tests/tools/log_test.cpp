#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "program.h"
#include "training_run.h"

// What becomes of a run whose log cannot be written, and of results that cannot be.

namespace terrace::tools::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using LogTest = TrainingRunTest;

/// Makes `descriptor` the end of a pipe that nobody reads any more.
void break_pipe(int descriptor) {
  int ends[2];
  if (::pipe(ends) != 0) return;
  ::dup2(ends[1], descriptor);
  ::close(ends[0]);
  ::close(ends[1]);
}

void fill(int descriptor) { ::dup2(::open("/dev/full", O_WRONLY), descriptor); }

TEST_F(LogTest, a_log_that_cannot_be_written_costs_no_run_and_the_record_says_so) {
  const std::map<std::string, std::function<void()>> logs = {
      {"ENOSPC", [] { fill(STDERR_FILENO); }},
      {"EBADF", [] { ::close(STDERR_FILENO); }},
      {"EPIPE", [] { break_pipe(STDERR_FILENO); }},
  };
  for (const auto& [error, prepare] : logs) {
    EXPECT_EQ(run(train(error, 2), {.prepare = prepare}).code, 0) << error;
    EXPECT_EQ(rows(error), 2) << error;
    EXPECT_TRUE(has(error + "/checkpoint-2")) << error;
    const nlohmann::json lost = record(error).at("lost_log_lines");
    EXPECT_GT(lost.at("lines"), 2) << error;
    EXPECT_THAT(lost.at("error").get<std::string>(), StartsWith(error));
    EXPECT_THAT(lost.at("since").get<std::string>(), StartsWith("20"));
  }
  EXPECT_EQ(run(train("whole", 1)).code, 0);
  EXPECT_TRUE(record("whole").at("lost_log_lines").is_null());
}

TEST_F(LogTest, a_reader_that_ends_or_sleeps_holds_up_neither_the_steps_nor_a_stop) {
  for (const bool ends : {true, false}) {
    const std::string output = ends ? "ended" : "asleep";
    const std::string pipe = folder_ / (output + ".pipe");
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ASSERT_GE(reader, 0);
    ASSERT_GE(::fcntl(reader, F_SETPIPE_SZ, 4096), 4096);
    const pid_t child = begin(train(output, 100'000, {"--save_steps", "0"}), "/dev/null", pipe);
    EXPECT_TRUE(has_rows(output, 1));
    if (ends) ::close(reader);
    // More lines than a pipe of one page takes.
    EXPECT_TRUE(has_rows(output, rows(output) + 100));
    ::kill(child, SIGTERM);
    EXPECT_EQ(exit_code_of(child), 128 + SIGTERM) << output;
    const std::string last = output + "/checkpoint-" + std::to_string(rows(output));
    EXPECT_TRUE(has(last)) << last;
    EXPECT_FALSE(has(output + "/run.lock"));
    const std::string error = record(output).at("lost_log_lines").at("error");
    EXPECT_THAT(error, StartsWith(ends ? "EPIPE" : "EAGAIN"));
    if (!ends) ::close(reader);
  }
}

TEST_F(LogTest, no_file_of_a_run_is_taken_for_a_standard_descriptor) {
  std::filesystem::create_directory(folder_ / "swap");
  const std::vector<std::string> on_disk = {"--save_steps", "0",      "--offload_optimizer",
                                            "nvme",         "--swap", folder_ / "swap"};
  const Surroundings closed = {.prepare = [] {
    for (const int descriptor : {0, 1, 2}) ::close(descriptor);
  }};
  const pid_t child = begin(train("run", 100'000, on_disk), "/dev/null", "/dev/null", closed);
  EXPECT_TRUE(has_rows("run", 20));
  const std::filesystem::path descriptors = "/proc/" + std::to_string(child) + "/fd";
  for (const char* number : {"0", "1", "2"}) {
    EXPECT_EQ(std::filesystem::read_symlink(descriptors / number), "/dev/null");
  }
  EXPECT_THAT(text_of("run/run.lock"), Not(HasSubstr("step")));
  ::kill(child, SIGTERM);
  EXPECT_EQ(exit_code_of(child), 128 + SIGTERM);
}

TEST_F(LogTest, a_result_that_cannot_be_written_is_an_error_that_says_so) {
  const std::map<std::string, std::function<void()>> results = {
      {"ENOSPC", [] { fill(STDOUT_FILENO); }},
      {"EBADF", [] { ::close(STDOUT_FILENO); }},
      {"EPIPE", [] { break_pipe(STDOUT_FILENO); }},
  };
  for (const auto& [error, prepare] : results) {
    const Result result = run({"plan", "--model", "tiny"}, {.prepare = prepare});
    expect_one_sentence(result, 5);
    EXPECT_THAT(result.err, HasSubstr("standard output: " + error));
  }
}

}  // namespace
}  // namespace terrace::tools::testing
