#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "config/parse.h"
#include "io/small_file_system.h"
#include "train/training.h"

namespace terrace::train::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

/// Twelve steps: two epochs over three files.
constexpr std::int64_t kSteps = 12;

class ResumeTest : public TrainingTest {
 protected:
  [[nodiscard]] config::Settings long_run(const std::string& output) const {
    config::Settings settings = this->settings(output);
    settings.length.max_steps = kSteps;
    settings.data.validation_fraction = 0.1;
    settings.cadence.eval_steps = 4;
    return settings;
  }
  static void put_state_on(config::Settings& settings, config::Placement placement) {
    settings.placement.optimizer.device = placement;
  }
  static std::vector<Row> from_step(const std::vector<Row>& all, std::int64_t first) {
    std::vector<Row> rest;
    for (const Row& row : all) {
      if (row.step >= first) rest.push_back(row);
    }
    return rest;
  }
};

TEST_F(ResumeTest, from_the_checkpoint_of_any_step_the_losses_go_on_as_if_never_interrupted) {
  config::Settings saving = long_run("saving");
  saving.cadence.save_steps = 1;
  saving.cadence.save_total_limit = 0;
  put_state_on(saving, config::Placement::nvme);
  const std::vector<Row> reference = run(long_run("reference"));
  ASSERT_EQ(reference.size(), static_cast<std::size_t>(kSteps));
  EXPECT_THAT(run(saving), ElementsAreArray(reference)) << "saving changes nothing";
  const std::string weights = read(folder_ / "reference" / "model.safetensors");
  const config::Placement placements[] = {config::Placement::nvme, config::Placement::cpu,
                                          config::Placement::none};
  for (std::int64_t step = 1; step < kSteps; ++step) {
    SCOPED_TRACE("resumed after step " + std::to_string(step));
    config::Settings resumed = long_run("from " + std::to_string(step));
    resumed.output.resume = folder_ / "saving" / ("checkpoint-" + std::to_string(step));
    put_state_on(resumed, placements[step % 3]);
    EXPECT_THAT(run(resumed), ElementsAreArray(from_step(reference, step + 1)));
    EXPECT_TRUE(read(fs::path(resumed.output.folder) / "model.safetensors") == weights);
  }
}

TEST_F(ResumeTest, bf16_and_every_format_of_the_state_come_back_from_a_checkpoint) {
  using optim::MasterFormat;
  for (const optim::StateFormat format :
       {optim::StateFormat{}, optim::StateFormat{MasterFormat::split, DType::f32},
        optim::StateFormat{MasterFormat::split, DType::bf16}}) {
    const std::string name =
        std::string(optim::name_of(format.master)) + std::string(name_of(format.moments));
    SCOPED_TRACE(name);
    config::Settings base = long_run(name);
    base.numerics.dtype = DType::bf16;
    base.optimizer.state = format;
    base.cadence.save_steps = 5;
    base.cadence.save_total_limit = 0;
    const std::vector<Row> reference = run(base);
    for (const config::Placement placement : {config::Placement::none, config::Placement::nvme}) {
      config::Settings resumed = base;
      put_state_on(resumed, placement);
      resumed.output.folder = folder_ / (name + std::to_string(static_cast<int>(placement)));
      resumed.output.resume = folder_ / name / "checkpoint-5";
      EXPECT_THAT(run(resumed), ElementsAreArray(from_step(reference, 6)));
    }
  }
}

TEST_F(ResumeTest, a_run_stopped_after_each_step_and_resumed_is_the_uninterrupted_run) {
  const std::vector<Row> reference = run(long_run("reference"));
  for (const config::Placement placement : {config::Placement::cpu, config::Placement::nvme}) {
    config::Settings settings = long_run("chain " + std::to_string(static_cast<int>(placement)));
    put_state_on(settings, placement);
    settings.cadence.save_steps = 1;
    settings.output.resume = "auto";
    int runs = 0;
    for (int code = 143; code == 143; ++runs) {
      ASSERT_LT(runs, 20);
      const Result result = train_run(settings, [](const std::string& line, auto& signal) {
        if (line.find("saved ") == 0) signal = SIGTERM;
      });
      code = result.code;
      ASSERT_TRUE(code == 143 || code == 0) << result.error;
      const std::vector<Row> so_far = rows(settings.output.folder);
      ASSERT_THAT(so_far, ElementsAreArray(reference.begin(),
                                           reference.begin() + static_cast<long>(so_far.size())));
    }
    EXPECT_EQ(rows(settings.output.folder).size(), static_cast<std::size_t>(kSteps));
    EXPECT_GE(runs, kSteps);
    EXPECT_TRUE(fs::is_empty(folder_ / "swap")) << "a finished run deletes its store";
  }
}

TEST_F(ResumeTest, a_signal_saves_at_the_step_boundary_unless_every_step_is_committed) {
  for (const auto& [placement, extents] :
       {std::pair(config::Placement::none, 2), std::pair(config::Placement::nvme, 2),
        std::pair(config::Placement::nvme, 1)}) {
    const std::string name = std::to_string(static_cast<int>(placement)) + std::to_string(extents);
    SCOPED_TRACE(name);
    config::Settings settings = long_run("stopped " + name);
    put_state_on(settings, placement);
    settings.placement.disk_extents = extents;
    settings.cadence.eval_steps = 3;
    const std::vector<Row> reference = [&] {
      config::Settings whole = settings;
      whole.output.folder += " never";
      return run(whole);
    }();
    const Result result = train_run(settings, [](const std::string& line, auto& signal) {
      if (line.find("validation loss") != std::string::npos) signal = SIGINT;
    });
    EXPECT_EQ(result.code, 130) << result.error;
    EXPECT_TRUE(result.says("stopped by signal 2 after step 3"));
    EXPECT_EQ(fs::exists(fs::path(settings.output.folder) / "checkpoint-3"),
              placement == config::Placement::none || extents == 1);
    settings.output.resume = "auto";
    const Result again = train_run(settings);
    EXPECT_TRUE(again.says("resuming at step 3")) << again.error;
    EXPECT_THAT(rows(settings.output.folder), ElementsAreArray(reference));
  }
}

TEST_F(ResumeTest, auto_finds_nothing_says_so_and_starts_afresh) {
  config::Settings settings = long_run("fresh");
  settings.output.resume = "auto";
  const Result result = train_run(settings);
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_TRUE(result.says("found nothing"));
  EXPECT_EQ(rows(folder_ / "fresh").size(), static_cast<std::size_t>(kSteps));
}

TEST_F(ResumeTest, a_finished_run_resumed_does_nothing_more) {
  config::Settings settings = long_run("done");
  settings.cadence.save_steps = 5;
  const std::vector<Row> reference = run(settings);
  settings.output.resume = "auto";
  EXPECT_THAT(run(settings), ElementsAreArray(reference));
}

TEST_F(ResumeTest, another_seed_model_or_data_is_refused_with_a_sentence) {
  config::Settings settings = long_run("run");
  settings.cadence.save_steps = 4;
  (void)run(settings);
  const fs::path checkpoint = folder_ / "run" / "checkpoint-8";

  auto refusal = [&](int code, const std::function<void(config::Settings&)>& change) {
    config::Settings changed = long_run("other");
    changed.output.resume = checkpoint;
    change(changed);
    const Result result = train_run(changed);
    EXPECT_EQ(result.code, code) << result.error;
    return result.error;
  };
  constexpr int kSetting = 2;
  constexpr int kFile = 4;
  EXPECT_THAT(refusal(kSetting, [](config::Settings& changed) { changed.numerics.seed = 1; }),
              HasSubstr("seed"));
  EXPECT_THAT(refusal(kSetting, [](config::Settings& changed) { changed.data.max_length = 8; }),
              HasSubstr("max_length"));
  EXPECT_THAT(
      refusal(kSetting, [](config::Settings& changed) { changed.data.validation_fraction = 0.4; }),
      HasSubstr("validation_fraction"));
  EXPECT_THAT(refusal(kFile,
                      [&](config::Settings& changed) {
                        write_model(folder_ / "other model", small_llama(false));
                        changed.model = folder_ / "other model";
                      }),
              HasSubstr("model"));
  EXPECT_THAT(refusal(kFile,
                      [&](config::Settings& changed) {
                        // The same size, other bytes: found by its hash.
                        std::string contents = read(folder_ / "two.txt");
                        contents[5] = contents[5] == 'x' ? 'y' : 'x';
                        write(folder_ / "two.txt", contents);
                        changed.output.resume = checkpoint;
                      }),
              HasSubstr("two.txt"));
}

TEST_F(ResumeTest, a_half_written_checkpoint_is_left_alone_and_the_newest_complete_one_used) {
  config::Settings settings = long_run("run");
  settings.cadence.save_steps = 3;
  settings.cadence.save_total_limit = 0;
  const std::vector<Row> reference = run(settings);
  fs::remove_all(folder_ / "run" / "checkpoint-12");
  fs::resize_file(folder_ / "run" / "checkpoint-9" / "optimizer" / "exp_avg.safetensors", 100);
  settings.output.resume = "auto";
  const Result result = train_run(settings);
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_TRUE(result.says("resuming at step 6"));
  EXPECT_THAT(rows(folder_ / "run"), ElementsAreArray(reference));
}

/// Bytes that the data files of stores below `base` have on disk.
std::uint64_t bytes_of_pages(const fs::path& base) {
  std::uint64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(base)) {
    struct stat status {};
    if (entry.path().filename() == "pages" && ::stat(entry.path().c_str(), &status) == 0) {
      bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

TEST_F(ResumeTest, a_disk_that_fills_up_stops_the_run_at_the_write_and_loses_no_committed_step) {
  const terrace::testing::SmallFileSystem small(folder_.path());
  if (!small.mounted()) GTEST_SKIP() << "cannot mount a file system in a file here";
  config::Settings saving = long_run("saving");
  saving.cadence.save_steps = 3;
  saving.cadence.save_total_limit = 0;
  const std::vector<Row> reference = run(saving);
  config::Settings settings = long_run("run");
  settings.output.resume = folder_ / "saving" / "checkpoint-3";
  put_state_on(settings, config::Placement::nvme);
  settings.placement.swap = {small.path()};
  // The committed extent of each page has its space by then; for the other one half is left.
  const Result full = train_run(settings, [&](const std::string& line, auto&) {
    if (line.starts_with("resuming at step 3")) small.fill(bytes_of_pages(small.path()) / 2);
  });
  EXPECT_EQ(full.code, 5);
  EXPECT_THAT(full.error, AllOf(HasSubstr("cannot write"), HasSubstr("ENOSPC"),
                                HasSubstr(small.path().string()), HasSubstr("/pages")));
  EXPECT_TRUE(rows(settings.output.folder).empty()) << "step 4 was not committed";
  small.empty();
  settings.output.resume = "auto";
  const Result rest = train_run(settings);
  ASSERT_EQ(rest.code, 0) << rest.error;
  EXPECT_TRUE(rest.says("resuming at step 3 from the committed store"));
  EXPECT_THAT(rows(settings.output.folder), ElementsAreArray(from_step(reference, 4)));
}

// A run that is killed is a process of its own: this program, started again.

constexpr const char* kConfigVariable = "TERRACE_TEST_CONFIG";
constexpr const char* kKillVariable = "TERRACE_TEST_KILL_AFTER";

/// Trains by the configuration in the environment and dies at the given row of metrics.jsonl or
/// line of the log.
TEST(KilledRun, DISABLED_trains_until_it_is_killed) {
  ASSERT_NE(std::getenv(kConfigVariable), nullptr);
  config::Settings settings = config::parse({"--config", std::getenv(kConfigVariable)}).settings;
  const std::string kill_after = std::getenv(kKillVariable);
  (void)train_run(settings, [&](const std::string& line, auto&) {
    if (line.find(kill_after) != std::string::npos) ::kill(::getpid(), SIGKILL);
  });
}

class KillTest : public ResumeTest {
 protected:
  /// Runs the settings in a child that dies when its log says `kill_after`, or, with a limit, when
  /// its time is over. Returns the status of `waitpid`.
  [[nodiscard]] int run_and_kill(const config::Settings& settings,
                                 const std::string& kill_after) const {
    const fs::path config = folder_ / "child.json";
    write(config, config::effective_json(settings));
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv(kConfigVariable, config.c_str(), 1);
      ::setenv(kKillVariable, kill_after.c_str(), 1);
      ::execl("/proc/self/exe", "killed-run", "--gtest_also_run_disabled_tests",
              "--gtest_filter=KilledRun.*", "--gtest_brief=1", nullptr);
      ::_exit(127);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  }
};

TEST_F(KillTest, a_killed_run_goes_on_at_its_last_committed_step) {
  config::Settings base = long_run("reference");
  base.cadence.eval_steps = 1;  // so that the log says each step, and a boundary follows
  // Without clipping and with everything on disk, updates run under backward.
  config::Settings unclipped = base;
  unclipped.optimizer.max_grad_norm = 0;
  unclipped.output.folder = folder_ / "unclipped reference";
  const std::vector<Row> references[] = {run(base), run(unclipped)};
  for (const auto& [parameters, step, clips] :
       {std::tuple(config::Placement::none, 1, true), std::tuple(config::Placement::cpu, 7, true),
        std::tuple(config::Placement::nvme, 2, true), std::tuple(config::Placement::nvme, 11, true),
        std::tuple(config::Placement::nvme, 5, false),
        std::tuple(config::Placement::nvme, 3, false)}) {
    SCOPED_TRACE("killed at step " + std::to_string(step));
    config::Settings settings = clips ? base : unclipped;
    const std::vector<Row>& reference = references[clips ? 0 : 1];
    settings.output.folder = folder_ / std::to_string(step);
    put_state_on(settings, config::Placement::nvme);
    settings.placement.parameters.device = parameters;
    if (step == 3 || step == 11) settings.placement.parameters.ratio = 0.5;
    // What is in no commit is neither missed nor found again.
    if (step > 2) settings.placement.activations.device = config::Placement::nvme;
    const int status = run_and_kill(settings, "step " + std::to_string(step) + ": validation loss");
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    settings.output.resume = "auto";
    if (step == 5) settings.placement.activations.device = config::Placement::cpu;
    const Result result = train_run(settings);
    ASSERT_EQ(result.code, 0) << result.error;
    EXPECT_TRUE(
        result.says("resuming at step " + std::to_string(step) + " from the committed store"));
    EXPECT_THAT(rows(settings.output.folder), ElementsAreArray(reference));
    EXPECT_TRUE(fs::is_empty(folder_ / "swap"));
  }
}

TEST_F(KillTest, what_is_not_all_in_the_store_goes_on_at_the_last_checkpoint) {
  config::Settings base = long_run("reference");
  base.cadence.eval_steps = 1;
  base.cadence.save_steps = 4;
  base.cadence.save_total_limit = 0;
  const std::vector<Row> reference = run(base);
  config::Settings settings = base;
  settings.output.folder = folder_ / "half";
  put_state_on(settings, config::Placement::nvme);
  settings.placement.optimizer.ratio = 0.5;
  const int status = run_and_kill(settings, "step 7: validation loss");
  ASSERT_TRUE(WIFSIGNALED(status));
  settings.output.resume = "auto";
  const Result result = train_run(settings);
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_TRUE(result.says("resuming at step 4"));
  EXPECT_THAT(rows(settings.output.folder), ElementsAreArray(reference));
}

TEST_F(KillTest, a_store_that_does_not_fit_the_settings_is_refused_and_kept) {
  config::Settings settings = long_run("run");
  settings.cadence.eval_steps = 1;
  put_state_on(settings, config::Placement::nvme);
  ASSERT_TRUE(WIFSIGNALED(run_and_kill(settings, "step 5: validation loss")));
  config::Settings changed = settings;
  changed.output.resume = "auto";
  changed.placement.chunk_elements = 4096;
  const Result result = train_run(changed);
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.error, HasSubstr("settings"));
  settings.output.resume = "auto";
  const Result again = train_run(settings);
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_TRUE(again.says("resuming at step 5")) << "nothing was lost";
}

}  // namespace
}  // namespace terrace::train::testing
