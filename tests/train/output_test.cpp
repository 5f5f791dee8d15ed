#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <string>

#include "core/parsed_json.h"
#include "core/sanitized.h"
#include "train/training.h"

namespace terrace::train::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::_;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Pair;

class OutputTest : public TrainingTest {};

TEST_F(OutputTest, a_folder_with_something_in_it_is_refused_without_resume_or_overwrite) {
  fs::create_directory(folder_ / "full");
  write(folder_ / "full" / "notes.txt", "mine");
  const Result result = train_run(settings("full"));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.error, AllOf(HasSubstr("is not empty"), HasSubstr("--resume auto"),
                                  HasSubstr("--overwrite_output_dir")));
  EXPECT_EQ(read(folder_ / "full" / "notes.txt"), "mine");
}

TEST_F(OutputTest, overwrite_starts_anew_and_keeps_what_is_not_a_runs) {
  config::Settings settings = this->settings("again");
  settings.cadence.save_steps = 2;
  const std::vector<Row> first = run(settings);
  write(folder_ / "again" / "notes.txt", "mine");
  settings.output.overwrite = true;
  settings.cadence.save_steps = 0;
  EXPECT_THAT(run(settings), ElementsAreArray(first)) << "the same run, its rows not appended";
  EXPECT_EQ(read(folder_ / "again" / "notes.txt"), "mine");
  EXPECT_FALSE(fs::exists(folder_ / "again" / "checkpoint-6"));
}

TEST_F(OutputTest, the_limit_keeps_the_newest_checkpoints) {
  config::Settings settings = this->settings("run");
  settings.cadence.save_steps = 1;
  settings.cadence.save_total_limit = 2;
  (void)run(settings);
  EXPECT_FALSE(fs::exists(folder_ / "run" / "checkpoint-4"));
  EXPECT_TRUE(fs::exists(folder_ / "run" / "checkpoint-5"));
  EXPECT_TRUE(fs::exists(folder_ / "run" / "checkpoint-6"));
}

TEST_F(OutputTest, a_dry_run_leaves_nothing) {
  config::Settings settings = this->settings("dry");
  settings.output.dry_run = true;
  settings.placement.optimizer.device = config::Placement::nvme;
  const Result result = train_run(settings);
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_FALSE(fs::exists(folder_ / "dry"));
  EXPECT_TRUE(fs::is_empty(folder_ / "swap"));
}

TEST_F(OutputTest, a_place_that_cannot_be_written_is_found_before_anything_is_done) {
  write(folder_ / "file", "mine");
  config::Settings settings = this->settings("file/run");
  settings.output.dry_run = true;
  Result result = train_run(settings);
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.error, AllOf(HasSubstr("file/run"), HasSubstr("is a file")));
  settings.output.folder = folder_ / "run";
  for (const fs::path& bad :
       {folder_ / "swap", folder_ / "none" / "trace.json", folder_ / "run" / "none" / "x"}) {
    settings.output.trace = bad;
    result = train_run(settings);
    EXPECT_EQ(result.code, 2) << bad;
    EXPECT_THAT(result.error, HasSubstr(bad == folder_ / "swap" ? "swap" : "none"));
  }
  settings.output.trace = folder_ / "run" / "trace.json";  // In a folder that the run makes.
  result = train_run(settings);
  EXPECT_EQ(result.code, 0) << result.error;
}

TEST_F(OutputTest, each_row_of_the_metrics_has_every_key_and_the_plans_bytes) {
  config::Settings settings = this->settings("run");
  settings.placement.optimizer.device = config::Placement::nvme;
  settings.data.validation_fraction = 0.2;
  settings.cadence.eval_steps = 4;
  (void)run(settings);
  std::ifstream file(folder_ / "run" / "metrics.jsonl");
  std::int64_t step = 0;
  const auto record = terrace::testing::read_json(folder_ / "run" / "run.json");
  std::map<std::string, std::uint64_t> planned;
  for (const auto& part : record.at("memory")) {
    planned[part.at("tier")] += part.at("bytes").get<std::uint64_t>();
  }
  for (std::string line; std::getline(file, line);) {
    const auto row = terrace::testing::parse_json(line);
    EXPECT_EQ(row.at("step"), ++step);
    for (const char* key :
         {"epoch", "loss", "grad_norm", "lr", "tokens", "tokens_per_second", "mfu", "skipped",
          "step_seconds", "busy_seconds", "wait_seconds", "bytes_moved", "resident_bytes"}) {
      EXPECT_TRUE(row.contains(key)) << key;
    }
    EXPECT_EQ(row.contains("eval_loss"), step == 4 || step == 6) << step;
    EXPECT_EQ(row.at("tokens"), 64);
    for (const char* lane : {"compute", "h2d", "d2h", "disk_read", "disk_write", "optimizer"}) {
      EXPECT_GE(row.at("busy_seconds").at(lane).get<double>(), 0) << lane;
    }
    for (const char* path : {"h2d", "d2h", "disk_read", "disk_write"}) {
      EXPECT_EQ(row.at("bytes_moved").at(path).get<double>(),
                record.at("work_per_step").at(path).get<double>())
          << path;
    }
    EXPECT_GT(row.at("bytes_moved").at("disk_read").get<double>(), 0);
    EXPECT_EQ(row.at("bytes_moved").at("disk_read"), row.at("bytes_moved").at("disk_write"));
    for (const char* tier : {"device", "host", "disk"}) {
      EXPECT_GT(row.at("resident_bytes").at(tier).get<std::uint64_t>(), 0U) << tier;
      EXPECT_EQ(row.at("resident_bytes").at(tier).get<std::uint64_t>(), planned[tier]) << tier;
    }
    EXPECT_GT(row.at("step_seconds").get<double>(), 0);
  }
  EXPECT_EQ(step, 6);
  EXPECT_EQ(record.at("total_steps"), 6);
  EXPECT_EQ(record.at("command"), "a test");
  EXPECT_THAT(record.at("device").get<std::string>(), ::testing::StartsWith("host ("));
  EXPECT_THAT(record.at("libraries").get<std::string>(),
              ::testing::ContainsRegex("oneDNN [0-9].*liburing [0-9].*Highway [0-9]"));
  EXPECT_THAT(record.at("system").get<std::string>(), HasSubstr("Linux "));
  EXPECT_FALSE(record.at("compiler").get<std::string>().empty());
  EXPECT_FALSE(record.at("memory").empty());
  EXPECT_TRUE(std::ranges::any_of(record.at("memory"),
                                  [](const auto& row) { return row.at("tier") == "process"; }));
}

TEST_F(OutputTest, a_trace_has_a_span_for_each_task_of_the_steps_asked_for) {
  config::Settings settings = this->settings("run");
  settings.placement.optimizer.device = config::Placement::nvme;
  settings.output.trace = folder_ / "trace.json";
  settings.output.trace_steps = {2, 3};
  (void)run(settings);
  const auto trace = terrace::testing::read_json(folder_ / "trace.json");
  const auto& events = trace.is_array() ? trace : trace.at("traceEvents");
  std::map<std::string, int> spans;
  std::map<int, int> arrows;
  nlohmann::json last;
  for (const auto& event : events) {
    const std::string phase = event.at("ph");
    if (phase == "X") ++spans[event.at("name").get<std::string>()];
    if (phase == "s") ++arrows[event.at("id")];
    if (phase == "f") --arrows[event.at("id")];
    if (phase == "C") last[event.at("name").get<std::string>()] = event.at("args");
  }
  EXPECT_EQ(spans["decide"], 2);
  EXPECT_EQ(spans["commit"], 2);
  EXPECT_EQ(spans["update"], spans["write chunk"]);
  EXPECT_EQ(spans["read chunk"], spans["update"]);
  EXPECT_EQ(spans["forward"], 2 * 2 * 3) << "2 steps of 2 micro-batches of 3 units";
  EXPECT_GE(arrows.size(), 2U * static_cast<std::size_t>(spans["update"]));
  EXPECT_THAT(arrows, Each(Pair(_, 0))) << "each arrow has both ends";
  // At the end nothing is under way, and what is kept has not changed.
  EXPECT_EQ(last.at("free chunk slots").at("free"), 8);
  EXPECT_EQ(last.at("host bytes").at("in use"), 0);
  EXPECT_GT(last.at("host bytes").at("kept"), 0);
  EXPECT_EQ(last.at("device bytes").at("in use"), 0);
  EXPECT_EQ(last.at("disk bytes under way"), (nlohmann::json{{"read", 0}, {"written", 0}}));
}

TEST_F(OutputTest, a_trace_of_steps_that_do_not_come_is_refused_or_said_to_be_none) {
  config::Settings settings = this->settings("run");
  settings.output.trace = folder_ / "trace.json";
  settings.output.trace_steps = {7, 9};
  const Result behind = train_run(settings);
  EXPECT_EQ(behind.code, 2);
  EXPECT_THAT(behind.error, AllOf(HasSubstr("7:9"), HasSubstr("ends with step 6")));
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  settings.output.trace_steps = {1, 5};
  settings.output.trace.clear();
  settings.cadence.save_steps = 6;
  (void)run(settings);
  settings.output.trace = folder_ / "trace.json";
  settings.output.resume = "auto";
  settings.length.max_steps = 7;
  settings.output.trace_steps = {4, 9};
  settings.output.dry_run = true;
  const Result planned = train_run(settings);
  EXPECT_EQ(planned.error, "");
  EXPECT_FALSE(planned.says("is not written")) << "step 7 comes";
  settings.output.dry_run = false;
  settings.output.trace_steps = {1, 5};
  const Result past = train_run(settings);
  EXPECT_EQ(past.code, 0) << past.error;
  EXPECT_TRUE(past.says("trace.json is not written"));
  EXPECT_TRUE(past.says("state of step 6 in ")) << "the table says what the run begins with";
  EXPECT_FALSE(past.says("random weights"));
  EXPECT_FALSE(fs::exists(folder_ / "trace.json"));
}

TEST_F(OutputTest, a_trace_has_no_more_steps_than_can_be_looked_at_and_says_so) {
  config::Settings settings = this->settings("run");
  settings.output.trace = folder_ / "trace.json";
  settings.length.max_steps = 1'000'000'000;
  settings.output.trace_steps = {11, 1'000'000'000};
  settings.output.dry_run = true;
  const Result cut = train_run(settings);
  EXPECT_EQ(cut.error, "");
  EXPECT_TRUE(cut.says("trace.json will have steps 11 to "));
  EXPECT_TRUE(cut.says("not up to 1000000000"));
  settings.output.trace_steps = {11, 20};
  EXPECT_FALSE(train_run(settings).says("will have steps"));
}

// Disk paths: known before the first step.

class DiskPathTest : public TrainingTest {
 protected:
  [[nodiscard]] config::Settings on_disk(const std::string& output, const fs::path& swap) const {
    config::Settings settings = this->settings(output);
    settings.placement.optimizer.device = config::Placement::nvme;
    settings.placement.swap = {swap};
    return settings;
  }
  void expect_no_step(const std::string& output) const {
    EXPECT_TRUE(rows(folder_ / output).empty());
  }
};

TEST_F(DiskPathTest, a_path_that_is_missing_is_refused_by_name) {
  const Result result = train_run(on_disk("run", folder_ / "nowhere"));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.error, HasSubstr("nowhere"));
  expect_no_step("run");
}

TEST_F(DiskPathTest, a_file_is_no_folder) {
  write(folder_ / "file", "");
  const Result result = train_run(on_disk("run", folder_ / "file"));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.error, HasSubstr("file"));
  expect_no_step("run");
}

TEST_F(DiskPathTest, a_path_that_cannot_be_written_is_refused_by_name) {
  const Result result = train_run(on_disk("run", "/sys/kernel"));
  EXPECT_EQ(result.code, 3) << "nothing is free there";
  EXPECT_THAT(result.error, HasSubstr("/sys/kernel"));
  expect_no_step("run");
}

TEST_F(DiskPathTest, more_than_disk_allows_does_not_fit_and_both_figures_are_named) {
  config::Settings settings = on_disk("run", folder_ / "swap");
  settings.placement.disk = config::Budget{.bytes = 100'000};
  const Result result = train_run(settings);
  EXPECT_EQ(result.code, 3) << result.error;
  EXPECT_THAT(result.error, AllOf(HasSubstr("--disk"), HasSubstr("KiB")));
  EXPECT_TRUE(fs::is_empty(folder_ / "swap"));
  expect_no_step("run");
}

TEST_F(DiskPathTest, a_folder_in_memory_is_no_disk) {
  fs::create_directory(folder_ / "memory");
  if (::mount("none", (folder_ / "memory").c_str(), "tmpfs", 0, "size=8m") != 0) {
    GTEST_SKIP() << "this process may not mount a file system";
  }
  const Result result = train_run(on_disk("run", folder_ / "memory"));
  ::umount((folder_ / "memory").c_str());
  EXPECT_EQ(result.code, 2) << result.error;
  EXPECT_THAT(result.error, HasSubstr("tmpfs"));
  expect_no_step("run");
}

TEST_F(DiskPathTest, more_memory_than_the_budget_does_not_fit_and_the_way_out_is_named) {
  config::Settings settings = this->settings("run");
  settings.placement.host_memory = config::Budget{.bytes = 1 << 20};
  const Result result = train_run(settings);
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.error, HasSubstr("--host_memory"));
  EXPECT_FALSE(fs::exists(folder_ / "run")) << "known before anything is made";
}

TEST_F(DiskPathTest, when_memory_gives_out_the_table_is_printed_again) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's shadow memory leaves no room for a limit";
  config::Settings settings = this->settings("run");
  settings.batch.micro = 60'000;
  settings.batch.accumulation = 1;
  const auto run_in_little = [&] {
    // Enough for threads and libraries, not for the device's slab.
    std::int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto used = static_cast<rlim_t>(pages) * static_cast<rlim_t>(::getpagesize());
    const rlimit limit{used + (rlim_t{192} << 20), RLIM_INFINITY};
    if (pages == 0 || ::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(90);
    const Result result = train_run(settings);
    const auto tables = std::ranges::count_if(result.lines, [](const std::string& line) {
      return line.starts_with("Memory\n") && line.find("saved activations") != std::string::npos;
    });
    std::fprintf(stderr, "%ld tables, %s\n", static_cast<long>(tables), result.error.c_str());
    ::_exit(result.code);
  };
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";  // libraries' threads do not fork
  EXPECT_EXIT(run_in_little(), ::testing::ExitedWithCode(8),
              "2 tables, cannot allocate .* for the device tier");
}

TEST_F(DiskPathTest, a_budget_above_the_free_memory_does_not_help) {
  config::Settings settings = this->settings("run");
  settings.model = "llama-70b";
  settings.placement.chunk_elements = 0;  // by the plan: so many small ones are a large plan
  settings.output.dry_run = true;
  settings.placement.host_memory = config::Budget{.bytes = std::uint64_t{1} << 50};
  const Result result = train_run(settings);
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.error, AllOf(HasSubstr("--host_memory allows them"), HasSubstr("are free")));
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

}  // namespace
}  // namespace terrace::train::testing
