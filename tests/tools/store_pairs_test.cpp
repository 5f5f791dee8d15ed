// Two runs that share drives, and everything that either does to them: each pair of actions, one of
// which is killed, or stopped while the other acts, at each of its system calls that write. Nothing
// whole and nothing live is lost, whoever has to give way is told why, and what a kill left stands
// in nobody's way. A sample by default; TERRACE_ALL_PAIRS=1 in the environment walks them all.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "injection.h"
#include "terrace/core/error.h"
#include "terrace/io/free_space.h"
#include "terrace/io/page_store.h"
#include "terrace/io/run_folder.h"

namespace terrace::tools::testing {
namespace {

namespace fs = std::filesystem;
using io::PageStore;
using io::RunFolder;
using io::RunId;
using io::RunRecord;

constexpr RunId kOne{1, 1}, kTwo{2, 2};

enum class Action { create, adopt, resume, clean, overwrite, finish };
constexpr std::array kActions = {Action::create, Action::adopt,     Action::resume,
                                 Action::clean,  Action::overwrite, Action::finish};
constexpr std::array kNames = {"create", "adopt", "resume", "clean", "overwrite", "finish"};
std::string name_of(Action action) { return kNames[static_cast<std::size_t>(action)]; }

/// How an action ends: done, or told why not; anything else is a fault.
constexpr int kDone = 0, kRefused = 10, kNothingThere = 11, kFault = 12;

// What the runs do. On a tmpfs, where a flush costs nothing.

Log silent([](LogLevel, std::string_view) {});

/// With a commit of version 1.
RunFolder make_store(const RunId& run, const std::vector<fs::path>& bases) {
  RunFolder folder = RunFolder::create(bases, {.owner = "a run", .run = run, .allow_memory = true});
  std::vector<io::StoreFolder> folders;
  for (const fs::path& path : folder.paths()) folders.push_back({path, 1});
  io::PageStoreOptions options;
  options.id = folder.id();
  options.run_state_bytes_max = 100;
  const std::vector<io::PageSpec> pages = {{io::PageId(1), 5000, "one"}, {io::PageId(2), 5000, ""}};
  PageStore::create(folders, pages, options, silent)->commit(Version(1), {});
  return folder;
}

struct Adopted {
  RunFolder folder;
  std::unique_ptr<PageStore> pages;
};

/// The whole store of a run, if it has one that nobody uses.
std::optional<Adopted> adopt(const RunId& run, const std::vector<fs::path>& bases) {
  for (const RunRecord& record : RunFolder::find(bases, run)) {
    if (!PageStore::is_made(record.path)) continue;
    RunFolder folder = RunFolder::adopt(record, {.owner = "a run again"});
    const std::vector<fs::path> paths(folder.paths().begin(), folder.paths().end());
    auto pages = PageStore::open(paths, {}, silent);
    return Adopted{std::move(folder), std::move(pages)};
  }
  return std::nullopt;
}

int clean(const std::vector<fs::path>& bases) {
  int code = kDone;
  for (const fs::path& base : bases) {
    for (const RunRecord& record : io::list_run_folders(base)) {
      if (record.liveness == io::RunLiveness::live || !fs::exists(record.path)) continue;
      try {
        io::remove_run_folder(record);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::usage) throw;
        std::fprintf(stderr, "%s\n", error.what());
        code = kRefused;
      }
    }
  }
  return code;
}

int act(Action action, const RunId& run, const std::vector<fs::path>& bases) {
  switch (action) {
    case Action::clean:
      return clean(bases);
    case Action::overwrite:
      for (const RunRecord& record : RunFolder::find(bases, run)) io::remove_run_folder(record);
      [[fallthrough]];
    case Action::create:
      (void)make_store(run, bases);
      return kDone;
    default:
      break;
  }
  auto found = adopt(run, bases);
  if (!found) return kNothingThere;
  if (action == Action::resume) {
    const auto version = found->pages->committed_version();
    require(version.has_value(), ErrorKind::internal, "a whole store without a commit");
    found->pages->commit(Version(version->value + 1), {});
  }
  found->pages.reset();
  if (action == Action::finish) found->folder.remove();
  return kDone;
}

// A run is a process of its own: this program, started again.

constexpr const char* kOrder = "TERRACE_STORE_ACTION";

TEST(StoreActor, DISABLED_acts) {
  ASSERT_NE(std::getenv(kOrder), nullptr);
  std::istringstream order(std::getenv(kOrder));
  int action = 0;
  RunId run;
  order >> action >> run.high >> run.low;
  std::vector<fs::path> bases;
  for (std::string base; order >> base;) bases.emplace_back(base);
  try {
    ::_exit(act(kActions[static_cast<std::size_t>(action)], run, bases));
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    ::_exit(error.kind() == ErrorKind::usage ? kRefused : kFault);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    ::_exit(kFault);
  }
}

class StorePairsTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    static const std::string reason = Injected::unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
    for (int drive = 0; drive < GetParam(); ++drive) {
      bases_.push_back(place_ / fmt::format("drive{}", drive));
    }
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(place_, ignored);
    std::printf("%d cases\n", cases_);
    RecordProperty("cases", cases_);
  }

  void empty_drives() const {
    for (const fs::path& base : bases_) {
      fs::remove_all(base);
      fs::create_directories(base);
    }
  }
  [[nodiscard]] pid_t begin(Action action, const RunId& run, const Injected* injected) const {
    std::string order = fmt::format("{} {} {}", static_cast<int>(action), run.high, run.low);
    for (const fs::path& base : bases_) order += " " + base.string();
    const std::string said = place_ / fmt::format("said{}", run.low);
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::setenv(kOrder, order.c_str(), 1);
    if (injected != nullptr) {
      for (const auto& [name, value] : injected->surroundings().environment) {
        ::setenv(name.c_str(), value.c_str(), 1);
      }
    }
    if (std::freopen(said.c_str(), "w", stderr) == nullptr ||
        std::freopen("/dev/null", "w", stdout) == nullptr)
      ::_exit(kFault);
    ::execl("/proc/self/exe", "actor", "--gtest_also_run_disabled_tests",
            "--gtest_filter=StoreActor.DISABLED_acts", nullptr);
    ::_exit(kFault);
  }
  /// The code with which an action ends that nothing strikes. Who is refused is told why.
  [[nodiscard]] int run(Action action, const RunId& run) const {
    return code_of(begin(action, run, nullptr), run);
  }
  [[nodiscard]] int code_of(pid_t child, const RunId& run) const {
    const int code = exit_code_of(child);
    std::ifstream file(place_ / fmt::format("said{}", run.low));
    const std::string said{std::istreambuf_iterator<char>(file), {}};
    EXPECT_NE(code, kFault) << said;
    if (code == kRefused) {
      EXPECT_NE(said, "");
    }
    return code;
  }
  /// The last commit of a run's whole store; 0 where there is none of either.
  [[nodiscard]] std::int64_t version(const RunId& run) const {
    for (const RunRecord& record : RunFolder::find(bases_, run)) {
      if (!PageStore::is_made(record.path)) continue;
      io::PageStoreOptions options;
      options.beside_live_run = true;
      const auto pages = PageStore::open(record.folders, options, silent);
      return pages->committed_version() ? pages->committed_version()->value : 0;
    }
    return 0;
  }
  [[nodiscard]] Injection striking(std::uint64_t nth, Strike strike) const {
    return {.calls = calls_that_write(), .below = bases_, .nth = nth, .strike = strike};
  }
  /// Calls `body` for each call of the action that writes, until it says that there was none.
  template <class Body>
  void for_each_call(const Body& body) {
    static const bool all = std::getenv("TERRACE_ALL_PAIRS") != nullptr;
    constexpr std::uint64_t kSampled = 23;
    for (std::uint64_t nth = all ? 1 : 1 + offset_++ % kSampled;; nth += all ? 1 : kSampled) {
      empty_drives();
      if (!body(nth) || ::testing::Test::HasFailure()) return;
      ++cases_;
    }
  }
  /// What is left is cleaned without rest, when nobody lives.
  void expect_clean() const {
    EXPECT_EQ(run(Action::clean, kTwo), kDone);
    for (const fs::path& base : bases_) EXPECT_TRUE(fs::is_empty(base));
  }

  void kill_in_each_call(Action killed, Action other, bool other_first);
  void act_in_each_call(Action stopped, Action other, const RunId& others);

  const fs::path place_ =
      (io::is_in_memory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()) /
      fmt::format("terrace-pairs-{}", ::getpid());
  std::vector<fs::path> bases_;
  int cases_ = 0;
  std::uint64_t offset_ = 0;
};

/// What is left of a store of version 1 after the action, done.
std::int64_t version_after(Action action) {
  if (action == Action::resume) return 2;
  return action == Action::clean || action == Action::finish ? 0 : 1;
}

bool removes(Action action) {
  return action == Action::clean || action == Action::overwrite || action == Action::finish;
}

void StorePairsTest::kill_in_each_call(Action killed, Action other, bool other_first) {
  for_each_call([&](std::uint64_t nth) {
    if (killed != Action::create) (void)make_store(kOne, bases_);
    if (other != Action::create) (void)make_store(kTwo, bases_);
    const Injected injected(striking(nth, Strike::killed_after));
    SCOPED_TRACE(fmt::format("{} killed in call {}, {} {}", name_of(killed), nth, name_of(other),
                             other_first ? "before" : "after"));
    if (other_first) {
      EXPECT_EQ(run(other, kTwo), kDone);
    }
    const std::int64_t before = version(kOne), others = version(kTwo);
    const int code = exit_code_of(begin(killed, kOne, &injected));
    if (!injected.struck()) return false;
    EXPECT_EQ(code, 128 + SIGKILL);
    SCOPED_TRACE(injected.place());
    // A clean of all may have come as far as the other's.
    if (killed != Action::clean) {
      EXPECT_EQ(version(kTwo), others);
    }
    const std::int64_t left = version(kOne);
    if (!removes(killed)) {
      EXPECT_GE(left, before);
    }
    if (!other_first) {
      const int expected = killed == Action::clean && version(kTwo) == 0 ? -1 : kDone;
      const int other_code = run(other, kTwo);
      if (expected == kDone) {
        EXPECT_EQ(other_code, kDone);
        EXPECT_EQ(version(kTwo), version_after(other));
      }
      if (other != Action::clean) {
        EXPECT_EQ(version(kOne), left);
      }
    }
    EXPECT_EQ(run(Action::overwrite, kOne), kDone);
    EXPECT_EQ(version(kOne), 1);
    expect_clean();
    return true;
  });
}

void StorePairsTest::act_in_each_call(Action stopped, Action other, const RunId& others) {
  for_each_call([&](std::uint64_t nth) {
    if (stopped != Action::create) (void)make_store(kOne, bases_);
    if (others != kOne && other != Action::create) (void)make_store(others, bases_);
    const Injected injected(striking(nth, Strike::stopped));
    SCOPED_TRACE(fmt::format("{} stopped in call {}, {} of {} run", name_of(stopped), nth,
                             name_of(other), others == kOne ? "the same" : "another"));
    const pid_t child = begin(stopped, kOne, &injected);
    int status = 0;
    ::waitpid(child, &status, WUNTRACED);
    if (!WIFSTOPPED(status)) return false;
    SCOPED_TRACE(injected.place());
    const int other_code = run(other, others == kOne ? RunId{1, 1} : others);
    ::kill(child, SIGCONT);
    const int code = code_of(child, kOne);
    EXPECT_TRUE(code == kDone || code == kRefused || code == kNothingThere) << code;
    // Whoever was not refused has done what he was to do, whatever the other did meanwhile.
    const auto done = [&](Action action) {
      return (stopped == action && code == kDone) || (other == action && other_code == kDone);
    };
    const bool is_removed =
        removes(stopped) || (removes(other) && (others == kOne || other == Action::clean));
    if (stopped != Action::create && !is_removed && others != kOne) {
      EXPECT_EQ(version(kOne), version_after(stopped));
    }
    if (others == kOne && !removes(stopped) && !removes(other) && stopped != Action::create &&
        other != Action::create) {
      const int resumes = (stopped == Action::resume && code == kDone) +
                          (other == Action::resume && other_code == kDone);
      EXPECT_EQ(version(kOne), 1 + resumes) << "no commit is lost";
    }
    if (stopped == Action::create) {
      EXPECT_EQ(code, kDone) << "whatever is cleaned meanwhile";
      EXPECT_GE(version(kOne), others == kOne && removes(other) ? 0 : 1);
    }
    if (others != kOne && !removes(other) && stopped != Action::clean) {
      EXPECT_EQ(version(others), version_after(other));
    }
    EXPECT_TRUE(done(stopped) || done(other)) << "one of the two goes on";
    expect_clean();
    return true;
  });
}

TEST_P(StorePairsTest, a_kill_in_any_call_of_one_loses_nothing_of_the_other) {
  for (const Action killed : kActions) {
    for (const Action other : kActions) {
      for (const bool other_first : {false, true}) {
        kill_in_each_call(killed, other, other_first);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(StorePairsTest, what_one_does_in_the_middle_of_the_others_action_harms_neither) {
  for (const Action stopped : kActions) {
    for (const Action other : kActions) {
      for (const RunId& others : {kOne, kTwo}) {
        act_in_each_call(stopped, other, others);
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Drives, StorePairsTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace terrace::tools::testing
