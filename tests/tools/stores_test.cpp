#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "injection.h"
#include "io/forbidden_locks.h"
#include "io/small_file_system.h"
#include "program.h"
#include "terrace/io/free_space.h"
#include "terrace/io/run_folder.h"
#include "training_run.h"

// Whose the stores on shared drives are, and what is gone on with when something of a run is lost.

namespace terrace::tools::testing {
namespace {

namespace fs = std::filesystem;
using terrace::testing::SmallFileSystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kNoContainer = 97;

/// What the program runs in: process numbers of its own, so that its own is 1, and `host` in the
/// place of `output`. When the process that waits for it is killed, so is it.
void enter_container(const fs::path& host, const fs::path& output) {
  if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount(host.c_str(), output.c_str(), nullptr, MS_BIND, nullptr) != 0) {
    ::_exit(kNoContainer);
  }
  const pid_t first = ::fork();
  if (first != 0) {
    int status = 0;
    ::waitpid(first, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::mount("proc", "/proc", "proc", 0, nullptr) != 0) ::_exit(kNoContainer);
}

class StoresTest : public TrainingRunTest {
 protected:
  void SetUp() override {
    if (io::is_in_memory(folder_.path())) GTEST_SKIP() << "the working folder lies in memory";
    for (const char* name : {"a", "b"}) fs::create_directory(folder_ / name);
  }

  [[nodiscard]] std::vector<std::string> on_drives(const std::string& drives,
                                                   std::vector<std::string> more = {}) const {
    std::string swap;
    for (const char drive : drives)
      swap += (swap.empty() ? "" : ",") + (folder_ / std::string(1, drive)).string();
    more.insert(more.end(), {"--offload_optimizer", "nvme", "--swap", swap, "--threads", "1"});
    return more;
  }
  /// Begins a run that takes for ever, and kills it after so many steps; `metrics` grows with it.
  void kill_at(int steps, std::vector<std::string> arguments, const fs::path& metrics,
               const Surroundings& surroundings = {}) const {
    const std::string err = folder_ / "killed";
    const pid_t child = begin(std::move(arguments), folder_ / "out", err, surroundings);
    const auto rows_now = [&] {
      std::ifstream file(metrics);
      return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
    };
    int status = 0;
    ASSERT_TRUE(comes_true(
        [&] { return rows_now() >= steps || ::waitpid(child, &status, WNOHANG) == child; }));
    ::kill(child, SIGKILL);
    (void)::waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoContainer) GTEST_SKIP() << "no containers";
    ASSERT_GE(rows_now(), steps) << read_and_remove(err);
    // A process of a container outlives the one that waits for it by some moments.
    ASSERT_TRUE(comes_true([&] {
      return std::ranges::none_of(stores(), [](const io::RunRecord& store) {
        return store.liveness == io::RunLiveness::live;
      });
    }));
  }
  [[nodiscard]] std::vector<io::RunRecord> stores(const std::string& drives = "ab") const {
    std::vector<io::RunRecord> found;
    for (const char drive : drives) {
      for (auto& record : io::list_run_folders(folder_ / std::string(1, drive)))
        found.push_back(record);
    }
    return found;
  }
  /// The loss of each step, of the last row where there are several.
  [[nodiscard]] static std::map<int, double> losses(const fs::path& metrics) {
    std::map<int, double> found;
    std::ifstream file(metrics);
    for (std::string line; std::getline(file, line);) {
      const auto row = terrace::testing::parse_json(line);
      found[row.at("step")] = row.at("loss");
    }
    return found;
  }
  static void expect_refused(const Result& result, int code,
                             const std::vector<std::string>& parts) {
    EXPECT_EQ(result.code, code) << result.err;
    for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
  }

  static constexpr int kForEver = 100'000;
};

TEST_F(StoresTest, the_id_of_a_run_stands_wherever_it_leaves_something) {
  // A step has its row before it is saved.
  kill_at(3, train("run", kForEver, on_drives("ab", {"--save_steps", "2"})),
          folder_ / "run/metrics.jsonl");
  const std::string id = record("run").at("run_id");
  EXPECT_EQ(id.size(), 32U);
  for (const io::RunRecord& store : stores()) EXPECT_EQ(store.id.run.text(), id);
  EXPECT_THAT(text_of("run/run.lock"), HasSubstr("run " + id));
  EXPECT_THAT(text_of("run/checkpoint-2/trainer_state.json"), HasSubstr(id));
  EXPECT_EQ(run({"swap", "clean", folder_ / "a"}).code, 0);
  EXPECT_TRUE(stores().empty()) << "the sibling on the other drive went with it";
}

TEST_F(StoresTest, deleted_locks_and_records_lose_nothing) {
  const auto arguments = [&](int steps, const std::string& resume) {
    return train("run", steps, on_drives("ab", {"--save_steps", "2", "--resume", resume}));
  };
  kill_at(3, arguments(kForEver, "auto"), folder_ / "run/metrics.jsonl");
  for (const io::RunRecord& store : stores()) fs::remove(store.path / "lock");
  fs::remove(folder_ / "run/run.lock");
  fs::remove(folder_ / "run/run.json");
  const int done = rows("run");
  const Result result = run(arguments(done + 2, "auto"));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("from the committed store"));
  EXPECT_TRUE(stores().empty());
}

TEST_F(StoresTest, two_containers_of_the_same_paths_never_touch_each_other) {
  const fs::path output = folder_ / "run";
  fs::create_directory(output);
  const auto in = [&](const std::string& host) {
    fs::create_directory(folder_ / host);
    return Surroundings{
        .prepare = [host = folder_ / host, output] { enter_container(host, output); }};
  };
  const auto arguments = [&](int steps, const std::string& rate, std::vector<std::string> more) {
    more.insert(more.end(),
                {"--learning_rate", rate, "--lr_scheduler_type", "constant", "--save_steps", "0"});
    return train("run", steps, on_drives("ab", std::move(more)));
  };
  const std::map<std::string, std::string> rates = {{"x", "1e-3"}, {"y", "5e-3"}};
  for (const auto& [host, rate] : rates) {
    kill_at(3, arguments(kForEver, rate, {}), folder_ / host / "metrics.jsonl", in(host));
    if (IsSkipped() || HasFatalFailure()) return;
  }
  EXPECT_EQ(stores("a").size(), 2U);
  // A third one, new, overwrites its own output alone, and one on drive b alone cleans nothing.
  const Result third = run(arguments(1, "1e-3", {"--overwrite_output_dir"}), in("z"));
  EXPECT_EQ(third.code, 0) << third.err;
  EXPECT_EQ(stores().size(), 4U);
  for (const auto& [host, rate] : rates) {
    const Result result = run(arguments(8, rate, {"--resume", "auto"}), in(host));
    if (result.code == 0) continue;
    // It was killed after its last step; then there is nothing left to train.
    ADD_FAILURE() << result.err;
  }
  EXPECT_TRUE(stores().empty());
  // Each is what it would have been alone.
  for (const auto& [host, rate] : rates) {
    const Result alone = run(train("alone" + host, 8,
                                   {"--learning_rate", rate, "--lr_scheduler_type", "constant",
                                    "--save_steps", "0", "--threads", "1"}));
    ASSERT_EQ(alone.code, 0) << alone.err;
    const auto expected = losses(folder_ / ("alone" + host) / "metrics.jsonl");
    const auto found = losses(folder_ / host / "metrics.jsonl");
    for (int step = 1; step <= 8; ++step)
      EXPECT_EQ(found.at(step), expected.at(step)) << host << step;
  }
}

TEST_F(StoresTest, a_live_store_outlives_the_cleaning_of_what_another_container_left) {
  const fs::path output = folder_ / "run";
  fs::create_directory(output);
  const auto in = [&](const std::string& host) {
    fs::create_directory(folder_ / host);
    return Surroundings{
        .prepare = [host = folder_ / host, output] { enter_container(host, output); }};
  };
  kill_at(2, train("run", kForEver, on_drives("ab")), folder_ / "x/metrics.jsonl", in("x"));
  if (IsSkipped() || HasFatalFailure()) return;
  fs::remove_all(stores("a").at(0).path);  // its first drive is wiped
  const pid_t live =
      begin(train("run", kForEver, on_drives("a")), folder_ / "out", folder_ / "err", in("y"));
  const auto y_has = [&](int count) { return comes_true([&] { return rows("y") >= count; }); };
  EXPECT_TRUE(y_has(2));
  EXPECT_EQ(run({"swap", "clean", folder_ / "b"}).code, 0);
  EXPECT_TRUE(stores("b").empty());
  const Result again = run(
      train("run", 1, on_drives("ab", {"--overwrite_output_dir", "--save_steps", "0"})), in("x"));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(y_has(rows("y") + 2)) << text_of("err");
  ::kill(live, SIGKILL);
  EXPECT_EQ(exit_code_of(live), 128 + SIGKILL);
}

TEST_F(StoresTest, a_drive_that_is_full_when_a_run_is_resumed_costs_nothing) {
  fs::create_directory(folder_ / "small");
  const SmallFileSystem small(folder_ / "small");
  if (!small.mounted()) GTEST_SKIP() << "this process may not mount a file system";
  fs::create_directory(small.path() / "s");
  fs::create_directory_symlink(small.path() / "s", folder_ / "s");
  const auto arguments = [&](int steps) {
    return train("run", steps, on_drives("s", {"--save_steps", "0", "--resume", "auto"}));
  };
  kill_at(3, arguments(kForEver), folder_ / "run/metrics.jsonl");
  if (HasFatalFailure()) return;
  const int done = rows("run");
  const fs::path lock = stores("s").at(0).path / "lock";
  std::ifstream file(lock);
  const std::string before{std::istreambuf_iterator<char>(file), {}};
  small.fill(0);
  int crumbs = 0;
  const auto crumb = [&](int i) { return small.path() / ("crumb" + std::to_string(i)); };
  while ((std::ofstream(crumb(crumbs++)) << "x").flush()) {
  }
  expect_refused(run(arguments(done + 2)), 5, {"ENOSPC", "stays as it was", "kept"});
  std::ifstream again(lock);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(again), {}), before);
  small.empty();
  while (crumbs > 0) fs::remove(crumb(--crumbs));
  const Result result = run(arguments(done + 2));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("from the committed store"));
}

TEST_F(StoresTest, a_checkpoint_is_gone_on_with_whatever_has_become_of_the_store) {
  fs::create_directory(folder_ / "small");
  const SmallFileSystem small(folder_ / "small");
  if (!small.mounted()) GTEST_SKIP() << "this process may not mount a file system";
  fs::remove(folder_ / "b");
  fs::create_directory_symlink(small.path(), folder_ / "b");
  kill_at(3, train("run", kForEver, on_drives("ab", {"--save_steps", "2"})),
          folder_ / "run/metrics.jsonl");
  if (HasFatalFailure()) return;
  const int saved = (rows("run") / 2) * 2;
  const std::string checkpoint = folder_ / fmt::format("run/checkpoint-{}", saved);
  if (!fs::exists(checkpoint)) GTEST_SKIP() << "killed while it saved";
  fs::remove_all(folder_ / fmt::format("run/checkpoint-{}", saved + 2));
  const fs::path store = stores("a").at(0).path;
  fs::copy(folder_ / "run", folder_ / "named", fs::copy_options::recursive);
  fs::copy(folder_ / "run", folder_ / "damaged", fs::copy_options::recursive);
  // The second drive is not mounted.
  ASSERT_EQ(::umount2(small.path().c_str(), MNT_DETACH), 0);
  const Result named =
      run(train("run", saved + 1, on_drives("a", {"--save_steps", "0", "--resume", checkpoint})));
  EXPECT_EQ(named.code, 0) << named.err;
  EXPECT_THAT(named.err,
              AllOf(HasSubstr(fmt::format("resuming at step {} from {}", saved, checkpoint)),
                    HasSubstr("is gone"), HasSubstr("stays as it is")));
  EXPECT_TRUE(fs::exists(store / "manifest")) << "nothing whole goes";
  // With "auto" likewise, and what is lost is said; a manifest that is damaged is no other thing.
  std::ofstream(store / "manifest") << "no manifest";
  fs::remove_all(folder_ / "run");
  fs::rename(folder_ / "damaged", folder_ / "run");
  const Result automatic =
      run(train("run", saved + 1, on_drives("a", {"--save_steps", "0", "--resume", "auto"})));
  EXPECT_EQ(automatic.code, 0) << automatic.err;
  EXPECT_THAT(automatic.err,
              AllOf(HasSubstr(fmt::format("from step {} of", saved)), HasSubstr("cannot be used"),
                    Not(HasSubstr("overwrite_output_dir"))));
  EXPECT_TRUE(fs::exists(store / "manifest"));
}

TEST_F(StoresTest, a_kill_while_the_manifest_is_made_blocks_nothing) {
  static const std::string reason = Injected::unavailable();
  if (!reason.empty()) GTEST_SKIP() << reason;
  const auto arguments = [&] { return train("run", 2, on_drives("a", {"--save_steps", "0"})); };
  for (std::uint64_t nth = 1;; ++nth) {
    const Injected injected({.calls = {"fallocate", "write", "open_to_write", "rename"},
                             .below = {folder_ / "a"},
                             .nth = nth,
                             .strike = Strike::killed_after});
    (void)run(arguments(), injected.surroundings());
    ASSERT_TRUE(injected.struck()) << "the manifest was never made";
    const bool is_manifests = injected.place().find("/manifest") != std::string::npos;
    const bool is_over = injected.place().starts_with("rename") && is_manifests;
    if (is_manifests) {
      SCOPED_TRACE(injected.place());
      const Result again = run(arguments());
      EXPECT_EQ(again.code, 0) << again.err;
      EXPECT_TRUE(stores().empty());
    }
    fs::remove_all(folder_ / "run");
    for (const io::RunRecord& store : stores()) fs::remove_all(store.path);
    if (is_over) break;
  }
}

TEST_F(StoresTest, a_copied_output_leaves_the_store_to_the_one_that_made_it) {
  const auto arguments = [&](const std::string& output, int steps, std::vector<std::string> more) {
    more.insert(more.end(), {"--save_steps", "2"});
    return train(output, steps, on_drives("a", std::move(more)));
  };
  kill_at(3, arguments("run", kForEver, {}), folder_ / "run/metrics.jsonl");
  const int done = rows("run");
  fs::copy(folder_ / "run", folder_ / "copy", fs::copy_options::recursive);
  const fs::path store = stores("a").at(0).path;
  for (const char* how : {"--resume=auto", "--overwrite_output_dir"}) {
    const Result copied = run(arguments("copy", done + 1, {how}));
    EXPECT_EQ(copied.code, 0) << copied.err;
    EXPECT_THAT(copied.err, HasSubstr("is a copy"));
    EXPECT_TRUE(fs::exists(store / "manifest"));
    fs::remove_all(folder_ / "copy");
    fs::copy(folder_ / "run", folder_ / "copy", fs::copy_options::recursive);
  }
  EXPECT_NE(record("copy").at("run_id"), "");
  // Where the first one is gone, the copy is what it was moved to.
  fs::remove_all(folder_ / "run");
  const Result moved = run(arguments("copy", done + 1, {"--resume", "auto"}));
  EXPECT_EQ(moved.code, 0) << moved.err;
  EXPECT_THAT(moved.err, HasSubstr("from the committed store"));
  EXPECT_TRUE(stores().empty());
}

TEST_F(StoresTest, an_output_is_one_runs_at_a_time_with_locks_of_either_kind_or_none) {
  const auto arguments = [&](int steps, const std::vector<std::string>& more) {
    return train("run", steps, more);
  };
  for (const bool flock_alone : {true, false}) {
    SCOPED_TRACE(flock_alone);
    const Surroundings forbidding{.prepare = [=] { terrace::testing::forbid_locks(flock_alone); }};
    const pid_t live = begin(arguments(kForEver, {"--no_lock", "--save_steps", "0"}),
                             folder_ / "out", folder_ / "err", forbidding);
    ASSERT_TRUE(has_rows("run", 2)) << text_of("err");
    for (const char* how : {"--resume=auto", "--overwrite_output_dir"}) {
      expect_refused(run(arguments(2, {how, "--no_lock"}), forbidding), 2,
                     {"in use by another run"});
    }
    ::kill(live, SIGKILL);
    exit_code_of(live);
    const Result unlocked = run(arguments(2, {"--overwrite_output_dir"}), forbidding);
    if (flock_alone) {
      EXPECT_EQ(unlocked.code, 0) << unlocked.err;
    } else {
      expect_refused(unlocked, 2, {"locks do not work", "--no_lock"});
    }
    fs::remove_all(folder_ / "run");
  }
}

}  // namespace
}  // namespace terrace::tools::testing
