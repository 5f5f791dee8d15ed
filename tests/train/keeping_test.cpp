#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <csignal>
#include <string>

#include "core/parsed_json.h"
#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "train/training.h"

// Nothing is lost: what runs resume, overwrite, rotate and clean up, and what they leave alone.

namespace terrace::train::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

class KeepingTest : public TrainingTest {
 protected:
  /// A run whose every step is committed, and whose log says each step.
  [[nodiscard]] config::Settings on_disk(const std::string& output = "run") const {
    config::Settings settings = this->settings(output);
    settings.placement.optimizer.device = config::Placement::nvme;
    settings.data.validation_fraction = 0.1;
    settings.cadence.eval_steps = 1;
    return settings;
  }
  [[nodiscard]] static Result stop_after(const config::Settings& settings, std::int64_t step) {
    const std::string line_of_step = fmt::format("step {}: validation loss", step);
    return train_run(settings, [&](const std::string& line, auto& signal) {
      if (line.find(line_of_step) != std::string::npos) signal = SIGTERM;
    });
  }
  [[nodiscard]] static config::Settings resumed(config::Settings settings,
                                                const std::string& from = "auto") {
    settings.output.resume = from;
    return settings;
  }
  [[nodiscard]] static config::Settings overwriting(config::Settings settings) {
    settings.output.overwrite = true;
    return settings;
  }
  [[nodiscard]] fs::path checkpoint(std::int64_t step) const {
    return folder_ / "run" / fmt::format("checkpoint-{}", step);
  }
  /// The one run folder below `swap`.
  [[nodiscard]] fs::path store() const {
    const fs::directory_iterator entries(folder_ / "swap");
    return entries == fs::end(entries) ? fs::path() : entries->path();
  }
  /// Refused, with one sentence that has all the parts.
  template <class... Parts>
  static void expect_refused(const config::Settings& settings, int code, const Parts&... parts) {
    const Result result = train_run(settings);
    EXPECT_EQ(result.code, code) << result.error;
    EXPECT_THAT(result.error, AllOf(HasSubstr(parts)...));
  }
  static void expect_goes_on(const config::Settings& settings, std::int64_t step) {
    const Result result = train_run(resumed(settings));
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_TRUE(result.says(fmt::format("resuming at step {} ", step)))
        << fmt::format("{}", fmt::join(result.lines, "\n"));
  }
};

// The store of a dead run.

TEST_F(KeepingTest, a_store_that_cannot_be_opened_is_kept_and_goes_on_once_it_can) {
  const config::Settings settings = on_disk();
  ASSERT_EQ(stop_after(settings, 3).code, 143);
  const std::string manifest = read(store() / "manifest");
  write(store() / "manifest", std::string(manifest.size(), 'x'));
  config::Settings dry = resumed(settings);
  dry.output.dry_run = true;
  expect_refused(dry, 4, store().string(), "kept");
  expect_refused(resumed(settings), 4, store().string(), "kept", "--resume auto");
  EXPECT_EQ(rows(folder_ / "run").size(), 3U);
  write(store() / "manifest", manifest);
  expect_goes_on(settings, 3);
}

TEST_F(KeepingTest, a_store_is_found_however_the_output_is_written) {
  const config::Settings settings = on_disk();
  ASSERT_EQ(stop_after(settings, 3).code, 143);
  config::Settings other = settings;
  other.output.folder = (folder_ / "swap" / ".." / "run").string() + "/";
  expect_goes_on(other, 3);
}

TEST_F(KeepingTest, a_store_below_another_swap_folder_is_found_and_named) {
  config::Settings settings = on_disk();
  fs::create_directory(folder_ / "swap2");
  settings.placement.swap = {folder_ / "swap", folder_ / "swap2"};
  ASSERT_EQ(stop_after(settings, 3).code, 143);
  config::Settings without = resumed(settings);
  without.placement.optimizer.device = config::Placement::automatic;
  without.placement.swap.clear();
  expect_refused(without, 2, "step 3", "--swap " + (folder_ / "swap").string());
  std::swap(settings.placement.swap[0], settings.placement.swap[1]);
  expect_goes_on(settings, 3);
}

TEST_F(KeepingTest, an_older_checkpoint_does_not_remove_a_newer_store) {
  config::Settings settings = on_disk();
  settings.cadence.save_steps = 2;
  ASSERT_EQ(stop_after(settings, 3).code, 143);
  expect_refused(resumed(settings, checkpoint(2)), 2, "step 3", store().string(), "--resume auto");
  expect_goes_on(settings, 3);
}

TEST_F(KeepingTest, a_store_whose_output_is_gone_is_another_runs_whatever_begins_there) {
  const config::Settings settings = on_disk();
  ASSERT_EQ(stop_after(settings, 3).code, 143);
  const fs::path old = store();
  fs::remove_all(folder_ / "run");
  for (const config::Settings& begun : {settings, overwriting(settings), resumed(settings)}) {
    const Result result = train_run(begun);
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_TRUE(result.says("terrace swap ls " + (folder_ / "swap").string()));
    EXPECT_TRUE(fs::exists(old / "manifest"));
    fs::remove_all(folder_ / "run");
  }
}

TEST_F(KeepingTest, a_store_says_where_the_parameters_are_whatever_ram_is_free) {
  config::Settings settings = on_disk();
  settings.placement.parameters.device = config::Placement::nvme;
  ASSERT_EQ(stop_after(settings, 3).code, 143);
  settings.placement.parameters.device = config::Placement::automatic;
  settings.placement.optimizer.device = config::Placement::automatic;
  expect_goes_on(settings, 3);
  config::Settings in_ram = on_disk("other");
  ASSERT_EQ(stop_after(in_ram, 3).code, 143);
  in_ram.placement.parameters.device = config::Placement::automatic;
  expect_goes_on(in_ram, 3);
  config::Settings in_part = on_disk("in part");
  in_part.placement.parameters.device = config::Placement::nvme;
  in_part.placement.parameters.ratio = 0.5;
  ASSERT_EQ(stop_after(in_part, 3).code, 143);
  in_part.placement.parameters.device = config::Placement::automatic;
  in_part.placement.parameters.ratio = 1;
  expect_goes_on(in_part, 3);
}

TEST_F(KeepingTest, what_a_store_cannot_be_given_is_refused_by_a_dry_run_and_it_goes_on_without) {
  const config::Settings settings = on_disk();
  ASSERT_EQ(stop_after(settings, 3).code, 143);
  config::Settings dry = resumed(settings);
  dry.output.dry_run = true;
  dry.placement.disk = config::Budget{.bytes = 1000};
  EXPECT_EQ(train_run(dry).code, 0) << "it takes nothing more";
  dry.placement.activations.device = config::Placement::nvme;
  expect_refused(dry, 3, "the inputs of blocks need", "--disk allows", "and the store has");
  expect_goes_on(settings, 3);
}

TEST_F(KeepingTest, inputs_of_blocks_do_not_stay_on_the_drive_when_a_run_stops) {
  config::Settings settings = on_disk();
  settings.placement.activations.device = config::Placement::nvme;
  bool was_there = false;
  const Result stopped = train_run(settings, [&](const std::string& line, auto& signal) {
    if (line.find("step 3: validation loss") == std::string::npos) return;
    was_there = fs::exists(store() / "scratch");
    signal = SIGTERM;
  });
  ASSERT_EQ(stopped.code, 143) << stopped.error;
  EXPECT_TRUE(was_there);
  EXPECT_FALSE(fs::exists(store() / "scratch"));
  EXPECT_TRUE(fs::exists(store() / "pages"));
  expect_goes_on(settings, 3);
}

TEST_F(KeepingTest, a_resumed_store_keeps_what_was_logged_before) {
  config::Settings settings = on_disk();
  settings.cadence.save_steps = 2;
  ASSERT_EQ(stop_after(settings, 3).code, 143);
  expect_goes_on(settings, 3);
  const auto history = checkpoint::TrainingCheckpoint(checkpoint(6)).trainer().log_history;
  ASSERT_EQ(history.size(), 6U);  // step 3, too, which no checkpoint has
  for (std::size_t i = 0; i < history.size(); ++i) {
    EXPECT_EQ(history[i].step, static_cast<std::int64_t>(i) + 1);
  }
}

TEST_F(KeepingTest, what_other_dead_runs_left_is_offered_for_cleaning) {
  ASSERT_EQ(stop_after(on_disk(), 3).code, 143);
  const fs::path old = store();
  const Result result = train_run(on_disk("other"));
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_TRUE(result.says("terrace swap ls " + (folder_ / "swap").string()));
  EXPECT_TRUE(fs::exists(old));
}

// Data.

TEST_F(KeepingTest, another_batch_size_goes_on_at_the_next_sample) {
  config::Settings small = settings("small");
  small.optimizer.learning_rate = 1e-30;  // Losses are those of the samples alone.
  small.batch.accumulation = 1;
  small.length.max_steps = 9;
  config::Settings large = small;
  large.output.folder = folder_ / "run";
  large.batch.accumulation = 2;
  large.length.max_steps = 3;
  large.cadence.save_steps = 3;
  const std::vector<Row> by_two = run(small);
  ASSERT_EQ(run(large).size(), 3U);
  config::Settings after = resumed(large);
  after.batch.accumulation = 1;
  after.length.max_steps = 6;
  const std::vector<Row> rest = run(after);
  ASSERT_EQ(rest.size(), 6U);
  for (std::size_t step = 3; step < 6; ++step) EXPECT_EQ(rest[step].loss, by_two[step + 3].loss);
  const auto state = checkpoint::TrainingCheckpoint(checkpoint(6)).trainer();
  EXPECT_EQ(state.loader.samples, 3 * 4 + 3 * 2);
  EXPECT_EQ(state.tokens_seen, state.loader.samples * 16);
}

TEST_F(KeepingTest, epochs_are_counted_in_samples_when_the_batch_changes) {
  config::Settings settings = this->settings("run");
  settings.length.max_steps = -1;
  settings.length.epochs = 1;
  settings.cadence.save_steps = 3;
  settings.cadence.save_total_limit = 0;
  (void)run(settings);
  config::Settings after = resumed(settings, checkpoint(3));
  after.output.folder = folder_ / "after";
  after.batch.accumulation = 1;
  const std::vector<Row> rest = run(after);
  const auto per_epoch = checkpoint::TrainingCheckpoint(checkpoint(3)).trainer().loader.sequences;
  EXPECT_EQ(static_cast<std::int64_t>(rest.size()), (per_epoch - 12 + 1) / 2);
}

// The output folder.

TEST_F(KeepingTest, overwriting_never_removes_the_model_that_it_starts_from) {
  config::Settings settings = this->settings("run");
  settings.cadence.save_steps = 2;
  (void)run(settings);
  for (const fs::path& model : {checkpoint(4), folder_ / "run"}) {
    config::Settings again = overwriting(settings);
    again.model = model;
    expect_refused(again, 2, "--overwrite_output_dir", "begin with");
  }
  EXPECT_TRUE(fs::exists(checkpoint(4)));
  EXPECT_TRUE(fs::exists(folder_ / "run" / "model.safetensors"));
  // A checkpoint may go somewhere else.
  config::Settings other = overwriting(settings);
  other.model = checkpoint(4);
  other.output.folder = folder_ / "other";
  (void)run(other);
}

TEST_F(KeepingTest, overwriting_removes_nothing_when_the_run_cannot_begin) {
  config::Settings settings = this->settings("run");
  settings.cadence.save_steps = 2;
  (void)run(settings);
  config::Settings again = overwriting(settings);
  again.placement.optimizer.device = config::Placement::nvme;
  again.placement.swap = {folder_ / "nowhere"};
  EXPECT_NE(train_run(again).code, 0);
  again = overwriting(settings);
  fs::copy(folder_ / "model", folder_ / "half a model");
  fs::resize_file(folder_ / "half a model" / "model.safetensors", 1000);
  again.model = folder_ / "half a model";
  expect_refused(again, 4, "half a model");
  EXPECT_TRUE(fs::exists(checkpoint(4)));
  EXPECT_EQ(rows(folder_ / "run").size(), 6U);
}

TEST_F(KeepingTest, overwriting_removes_the_former_final_model_too_and_says_so) {
  config::Settings settings = this->settings("run");
  settings.cadence.save_steps = 2;
  (void)run(settings);
  config::Settings again = overwriting(settings);
  const Result result = train_run(again, [](const std::string& line, auto& signal) {
    if (line.find("saved ") == 0) signal = SIGTERM;
  });
  EXPECT_EQ(result.code, 143) << result.error;
  EXPECT_TRUE(result.says("removed checkpoint-6, checkpoint-4"));
  const auto found = checkpoint::resolve_model_folder(folder_ / "run");
  EXPECT_EQ(found.folder, checkpoint(2)) << "a model of the former run would be another one";
}

TEST_F(KeepingTest, an_older_checkpoint_does_not_lose_the_later_ones) {
  config::Settings settings = this->settings("run");
  settings.cadence.save_steps = 1;
  settings.cadence.save_total_limit = 3;
  const std::vector<Row> all = run(settings);
  expect_refused(resumed(settings, checkpoint(4)), 2, checkpoint(6).string(), "another --output");
  EXPECT_TRUE(fs::exists(checkpoint(5)));
  EXPECT_THAT(rows(folder_ / "run"), ElementsAreArray(all));
  config::Settings elsewhere = resumed(settings, checkpoint(4));
  elsewhere.output.folder = folder_ / "elsewhere";
  EXPECT_EQ(run(elsewhere).size(), 2U);
}

TEST_F(KeepingTest, a_second_run_on_the_same_output_is_refused_and_changes_nothing) {
  const config::Settings settings = on_disk();
  Result second;
  const Result first = train_run(settings, [&](const std::string& line, auto&) {
    if (line.find("step 2: validation loss") != std::string::npos) {
      second = train_run(resumed(settings));
    }
  });
  EXPECT_EQ(first.code, 0) << first.error;
  EXPECT_EQ(second.code, 2);
  EXPECT_THAT(second.error,
              AllOf(HasSubstr("in use by another run"), HasSubstr((folder_ / "run").string())));
  EXPECT_EQ(rows(folder_ / "run").size(), 6U);
  EXPECT_FALSE(fs::exists(folder_ / "run" / "run.lock"));
}

TEST_F(KeepingTest, what_a_killed_save_left_is_restored_or_removed) {
  config::Settings settings = this->settings("run");
  settings.cadence.save_steps = 2;
  const std::vector<Row> all = run(settings);
  // No process has such a number.
  fs::rename(checkpoint(6), folder_ / "run" / "checkpoint-6.tmp-999999999-replaced");
  fs::create_directory(folder_ / "run" / "checkpoint-8.tmp-999999999");
  fs::create_directory(folder_ / "run" / "model.tmp-999999999");
  const Result result = train_run(resumed(settings));
  EXPECT_TRUE(result.says("resuming at step 6")) << result.error;
  EXPECT_TRUE(fs::exists(checkpoint(6)));
  EXPECT_FALSE(fs::exists(folder_ / "run" / "checkpoint-8.tmp-999999999"));
  EXPECT_FALSE(fs::exists(folder_ / "run" / "model.tmp-999999999"));
}

TEST_F(KeepingTest, room_for_every_checkpoint_that_stands_at_once_is_known_before_the_start) {
  config::Settings settings = this->settings("run");
  settings.cadence.save_steps = 1;
  settings.cadence.save_total_limit = 1;
  (void)run(settings);
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint(6))) {
    if (entry.is_regular_file()) bytes += (entry.file_size() + 4095) / 4096 * 4096;
  }
  fs::create_directory(folder_ / "small");
  const std::string size = fmt::format("size={}", bytes * 7 / 2);
  if (::mount("none", (folder_ / "small").c_str(), "tmpfs", 0, size.c_str()) != 0) {
    GTEST_SKIP() << "this process may not mount a file system";
  }
  settings.output.folder = folder_ / "small" / "run";
  settings.cadence.save_total_limit = 3;
  expect_refused(settings, 3, "free", "--save_total_limit");
  EXPECT_FALSE(fs::exists(folder_ / "small" / "run")) << "known before anything is made";
  settings.cadence.save_total_limit = 1;
  EXPECT_EQ(train_run(settings).code, 0);
  ::umount((folder_ / "small").c_str());
}

TEST_F(KeepingTest, a_dry_run_finds_what_a_run_would_end_with) {
  config::Settings dry = on_disk();
  dry.output.dry_run = true;
  dry.placement.swap = {folder_ / "nowhere"};
  expect_refused(dry, 2, "nowhere");
  dry = on_disk();
  dry.output.dry_run = true;
  fs::remove(folder_ / "model" / "model.safetensors");
  expect_refused(dry, 4, "safetensors");
}

TEST_F(KeepingTest, a_path_that_is_not_utf8_is_trained_on) {
  config::Settings settings = this->settings("run");
  const std::string name = folder_ / "caf\xe9.txt";
  fs::rename(folder_ / "one.txt", name);
  settings.data.files[0] = name;
  EXPECT_EQ(run(settings).size(), 6U);
  EXPECT_NO_THROW((void)terrace::testing::read_json(folder_ / "run" / "run.json"));
}

TEST_F(KeepingTest, a_flat_of_more_chunks_than_the_channel_usually_has_in_flight_trains_from_disk) {
  model::Config config = small_llama(true);
  config.hidden_size = 384;
  config.intermediate_size = 1536;
  config.num_hidden_layers = 1;
  config.head_dim = 64;
  write_model(folder_ / "wide", config);
  config::Settings settings = this->settings("run");
  settings.model = folder_ / "wide";
  settings.length.max_steps = 1;
  settings.placement.optimizer.device = config::Placement::nvme;
  settings.placement.parameters.device = config::Placement::nvme;
  EXPECT_EQ(run(settings).size(), 1U);
}

}  // namespace
}  // namespace terrace::train::testing
