#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "checkpoint/small_model.h"
#include "core/error_of.h"
#include "core/sanitized.h"
#include "io/temporary_folder.h"
#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/core/clock.h"

// What a save leaves behind when it is killed, fails or is cancelled at any point.

namespace terrace::checkpoint {
namespace {

using terrace::testing::error_of;
using terrace::testing::TemporaryFolder;
using testing::FunctionSource;
using ::testing::HasSubstr;
using testing::KeepingSink;
using testing::small_contents;
using testing::small_tensors;

/// Runs `body` in a process of its own and returns how that ended, as waitpid says.
int run_in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 0;
    try {
      body();
    } catch (const std::exception&) {
      code = 1;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

void save(const std::filesystem::path& output, std::int64_t step, std::uint64_t seed,
          const ProgressFunction& progress = {}) {
  FunctionSource source(seed);
  (void)save_checkpoint(output, small_contents(step), source,
                        {.shard_bytes_max = 4000, .progress = progress});
}

/// Checks that what a resume would take is whole, and returns its step.
std::int64_t expect_newest_is_whole(const std::filesystem::path& output,
                                    std::int64_t step_of_seed2) {
  const auto newest = newest_checkpoint(output);
  EXPECT_TRUE(newest.has_value());
  if (!newest) return -1;
  const TrainingCheckpoint checkpoint(newest->folder);
  KeepingSink sink;
  checkpoint.restore(sink);
  const std::uint64_t seed = newest->step == step_of_seed2 ? 2 : 1;
  sink.expect_equal(FunctionSource(seed), small_tensors());
  return newest->step;
}

/// The points of a save at which it can be stopped are its reports of progress. Each point of its
/// end, where files are finished and renamed, is tried, and every fifth of the copying before.
int next_point(int point, int points) { return point + (point < points - 12 ? 5 : 1); }

/// How often a save reports progress.
int count_points() {
  const TemporaryFolder output;
  int points = 0;
  save(output.path(), 20, 2, [&](const Progress&) { ++points; });
  return points;
}

TEST(InterruptedSave, a_kill_at_every_point_leaves_the_newest_whole_one) {
  const int points = count_points();
  ASSERT_GT(points, 60);
  for (int point = 1; point <= points; point = next_point(point, points)) {
    const TemporaryFolder output;
    save(output.path(), 10, 1);
    int calls = 0;
    const int status = run_in_child([&] {
      save(output.path(), 20, 2, [&](const Progress&) {
        if (++calls == point) ::raise(SIGKILL);
      });
    });
    ASSERT_TRUE(WIFSIGNALED(status));
    const CheckpointList list = list_checkpoints(output.path());
    EXPECT_TRUE(list.broken.empty());
    EXPECT_EQ(expect_newest_is_whole(output.path(), 20), point < points ? 10 : 20);
    EXPECT_EQ(list.unfinished.size(), point < points ? 1U : 0U);
    (void)remove_unfinished(output.path());
    EXPECT_TRUE(list_checkpoints(output.path()).unfinished.empty());
    // A kill between the marker and the rename: the finished checkpoint is put in its place.
    EXPECT_EQ(expect_newest_is_whole(output.path(), 20), point < points - 1 ? 10 : 20);
  }
}

TEST(InterruptedSave, a_kill_while_an_older_one_of_its_step_is_replaced_leaves_one_of_them) {
  const int points = count_points();
  for (int point = 1; point <= points; point = next_point(point, points)) {
    const TemporaryFolder output;
    save(output.path(), 20, 1);
    int calls = 0;
    (void)run_in_child([&] {
      save(output.path(), 20, 2, [&](const Progress&) {
        if (++calls == point) ::raise(SIGKILL);
      });
    });
    KeepingSink sink;
    TrainingCheckpoint(newest_checkpoint(output.path()).value().folder).restore(sink);
    sink.expect_equal(FunctionSource(point < points ? 1 : 2), small_tensors());
  }
}

TEST(InterruptedSave, twenty_kills_at_random_moments_never_cost_the_newest) {
  const TemporaryFolder output;
  save(output.path(), 1, 1);
  const std::uint64_t seed = static_cast<std::uint64_t>(now_us());
  SCOPED_TRACE("seed " + std::to_string(seed));
  const RandomStream random(seed, 1);
  std::int64_t newest = 1;
  for (std::uint64_t kill = 0; kill < 20; ++kill) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (std::int64_t step = newest + 1;; ++step) save(output.path(), step, 1);
    }
    sleep_us(static_cast<std::int64_t>(random.below(kill, 120'000)));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ::waitpid(child, nullptr, 0);
    const std::int64_t found = expect_newest_is_whole(output.path(), -1);
    EXPECT_GE(found, newest);
    newest = found;
    EXPECT_TRUE(list_checkpoints(output.path()).broken.empty());
    (void)rotate_checkpoints(output.path(), 2);
  }
}

TEST(InterruptedSave, an_error_at_every_point_leaves_nothing_of_the_new_one) {
  const int points = count_points();
  const TemporaryFolder output;
  save(output.path(), 10, 1);
  for (int point = 1; point < points; point = next_point(point, points)) {
    int calls = 0;
    EXPECT_THROW(save(output.path(), 20, 2,
                      [&](const Progress&) {
                        if (++calls == point) fail(ErrorKind::io, "the disk is gone");
                      }),
                 Error);
    const CheckpointList list = list_checkpoints(output.path());
    ASSERT_EQ(list.complete.size(), 1U);
    EXPECT_TRUE(list.broken.empty() && list.unfinished.empty());
  }
  EXPECT_EQ(expect_newest_is_whole(output.path(), 20), 10);
}

TEST(InterruptedSave, a_file_that_cannot_grow_is_an_error_and_leaves_the_older_one) {
  const TemporaryFolder output;
  save(output.path(), 10, 1);
  const int status = run_in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const Error error = error_of([&] { save(output.path(), 20, 2); });
    const bool is_told = error.kind() == ErrorKind::io &&
                         std::string(error.what()).find("EFBIG") != std::string::npos;
    ::_exit(is_told ? 42 : 43);
  });
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_TRUE(list_checkpoints(output.path()).unfinished.empty());
  EXPECT_EQ(expect_newest_is_whole(output.path(), 20), 10);
}

TEST(InterruptedSave, a_source_that_fails_ends_the_save) {
  class Failing : public StateSource {
    void read(StateKind kind, const std::string& tensor, std::int64_t, std::span<float>) override {
      if (kind == StateKind::exp_avg_sq) fail(ErrorKind::io, "cannot read {}", tensor);
    }
  };
  const TemporaryFolder output;
  Failing source;
  const Error error =
      error_of([&] { (void)save_checkpoint(output.path(), small_contents(1), source); });
  EXPECT_THAT(error.what(), HasSubstr("cannot read"));
  EXPECT_TRUE(std::filesystem::is_empty(output.path()));
}

/// Peak resident bytes of this process since the last reset.
std::uint64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

TEST(SaveMemory, does_not_grow_with_the_model) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory hides the save's";
  class Constant : public StateSource {
    void read(StateKind, const std::string&, std::int64_t, std::span<float> values) override {
      std::fill(values.begin(), values.end(), 0.5F);
    }
  };
  const TemporaryFolder output;
  CheckpointContents contents = small_contents(1);
  contents.tensors.assign(1, {"big", {48, 1 << 20}});  // 192 MiB a kind, 672 MiB in all
  const int status = run_in_child([&] {
    Constant source;
    const std::uint64_t before = peak_bytes();
    (void)save_checkpoint(output.path(), contents, source);
    ::_exit(peak_bytes() - before < (24U << 20) ? 42 : 43);
  });
  EXPECT_EQ(WEXITSTATUS(status), 42) << "more than 24 MiB were taken";
}

}  // namespace
}  // namespace terrace::checkpoint
