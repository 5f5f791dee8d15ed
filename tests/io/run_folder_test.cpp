#include "terrace/io/run_folder.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <span>
#include <vector>

#include "core/error_of.h"
#include "io/child.h"
#include "io/temporary_folder.h"
#include "terrace/core/error.h"
#include "terrace/core/unique_handle.h"
#include "terrace/core/units.h"
#include "terrace/io/free_space.h"
#include "terrace/io/page_store.h"

namespace terrace::io {
namespace {

using terrace::testing::Child;
using terrace::testing::error_of;
using terrace::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr RunId kMine{1, 2};

class RunFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (is_in_memory(folder_.path())) GTEST_SKIP() << "the working folder lies in memory";
    for (const char* name : {"a", "b"}) {
      std::filesystem::create_directory(folder_ / name);
      bases_.push_back(folder_ / name);
    }
  }

  TemporaryFolder folder_;
  std::vector<std::filesystem::path> bases_;
};

TEST_F(RunFolderTest, a_live_run_is_listed_and_never_touched) {
  Child child([&] {
    auto* run = new RunFolder(RunFolder::create(bases_, {.owner = "rank 0 of /out", .run = kMine}));
    std::ofstream(run->paths()[1] / "pages") << "state";
  });
  for (const auto& base : bases_) {
    const auto records = list_run_folders(base);
    ASSERT_EQ(records.size(), 1U);
    EXPECT_EQ(records[0].liveness, RunLiveness::live);
    EXPECT_EQ(records[0].owner, "rank 0 of /out");
    EXPECT_EQ(error_of([&] { remove_run_folder(records[0], true); }).kind(), ErrorKind::usage);
    EXPECT_THAT(error_of([&] { (void)RunFolder::adopt(records[0], {}); }).what(),
                HasSubstr("is in use"));
    EXPECT_TRUE(std::filesystem::exists(records[0].path));
  }
}

TEST_F(RunFolderTest, what_a_killed_run_left_is_found_and_cleaned_on_all_drives) {
  Child child([&] {
    auto* run = new RunFolder(RunFolder::create(bases_, {.owner = "me", .run = kMine}));
    std::ofstream(run->paths()[1] / "pages") << std::string(100'000, 'x');
  });
  child.kill();
  const auto other = RunFolder::create(bases_, {.owner = "other"});
  const auto found = RunFolder::find(bases_, kMine);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].liveness, RunLiveness::dead);
  EXPECT_EQ(found[0].folders.size(), 2U);
  EXPECT_GE(remove_run_folder(found[0]).bytes, 100'000U);
  for (const auto& base : bases_) {
    const auto records = list_run_folders(base);
    ASSERT_EQ(records.size(), 1U);
    EXPECT_EQ(records[0].owner, "other");
  }
}

TEST_F(RunFolderTest, a_dead_run_is_adopted_once) {
  Child child([&] { new RunFolder(RunFolder::create(bases_, {.owner = "me", .run = kMine})); });
  child.kill();
  const auto found = RunFolder::find(bases_, kMine);
  ASSERT_EQ(found.size(), 1U);
  auto adopted = RunFolder::adopt(found[0], {.owner = "me"});
  EXPECT_EQ(adopted.paths()[0], found[0].path);
  EXPECT_EQ(adopted.paths().size(), 2U);
  EXPECT_EQ(list_run_folders(bases_[1])[0].liveness, RunLiveness::live);
  EXPECT_THROW((void)RunFolder::adopt(found[0], {}), Error);
  adopted.remove();
  EXPECT_TRUE(list_run_folders(bases_[0]).empty());
  EXPECT_TRUE(list_run_folders(bases_[1]).empty());
}

TEST_F(RunFolderTest, what_a_kill_left_before_it_said_whose_it_is_is_taken_again) {
  const std::filesystem::path name =
      RunFolder::create(bases_, {.run = kMine}).paths()[0].filename();
  const auto left = [&](const std::vector<std::string>& files) {
    for (const auto& base : bases_) std::filesystem::remove_all(base / name);
    std::filesystem::create_directory(bases_[0] / name);
    for (const std::string& file : files) std::ofstream(bases_[0] / name / file) << "own";
  };
  for (const auto& files : std::vector<std::vector<std::string>>{{}, {"lock"}, {"lock.new"}}) {
    left(files);
    RunFolder again = RunFolder::create(bases_, {.run = kMine});
    EXPECT_EQ(again.paths()[0], bases_[0] / name);
    EXPECT_EQ(again.paths()[1], bases_[1] / name);
    again.remove();
    EXPECT_TRUE(std::filesystem::is_empty(bases_[0]));
  }
  left({"pages"});  // not nothing, whosever it is
  EXPECT_NE(RunFolder::create(bases_, {.run = kMine}).paths()[0], bases_[0] / name);
  EXPECT_TRUE(std::filesystem::exists(bases_[0] / name / "pages"));
  left({});
  const auto held = FolderLock::take(bases_[0] / name / "lock", false);
  ASSERT_TRUE(held.has_value());
  EXPECT_NE(RunFolder::create(bases_, {.run = kMine}).paths()[0], bases_[0] / name);
}

TEST_F(RunFolderTest, a_removal_that_is_cut_short_leaves_the_store_or_leftovers_that_are_cleaned) {
  Log log([](LogLevel, std::string_view) {});
  const std::vector<PageSpec> pages = {{PageId(1), 10'000, "one"}, {PageId(2), 10'000, "two"}};
  std::size_t steps = 1;
  for (std::size_t done = 0; done <= steps; ++done) {
    std::vector<std::filesystem::path> paths;
    {
      const RunFolder run = RunFolder::create(bases_, {.owner = "me", .run = kMine});
      paths.assign(run.paths().begin(), run.paths().end());
      const StoreFolder folders[] = {{paths[0], 1}, {paths[1], 1}};
      PageStore::create(folders, pages, PageStoreOptions{}, log)->commit(Version(1), {});
    }
    const auto order = removal_order(paths);
    steps = order.size();
    ASSERT_EQ(steps, 7U) << "a manifest, and of each folder its pages, its lock and itself";
    for (std::size_t i = 0; i < done; ++i) std::filesystem::remove(order[i]);
    SCOPED_TRACE(fmt::format("after {} of {}", done, steps));

    EXPECT_EQ(PageStore::is_made(paths[0]), done == 0) << "nothing is left that cannot be opened";
    if (done == 0) {
      EXPECT_EQ(PageStore::open(paths, {}, log)->committed_version(), Version(1));
    }
    EXPECT_EQ(RunFolder::find(bases_, kMine).size(), done + 2 <= steps ? 1U : 0U)
        << "its record goes last";
    for (const auto& base : bases_) {
      for (const RunRecord& record : list_run_folders(base)) {
        EXPECT_EQ(record.liveness, RunLiveness::dead);
        if (std::filesystem::exists(record.path)) remove_run_folder(record);
      }
      EXPECT_TRUE(std::filesystem::is_empty(base));
    }
  }
}

TEST_F(RunFolderTest, the_space_of_a_removed_run_is_free_at_once_whoever_has_its_files_open) {
  RunFolder run = RunFolder::create(bases_, {.owner = "me"});
  const std::filesystem::path pages = run.paths()[1] / "pages";
  const std::string state(100'000, 'x');
  std::ofstream(pages) << state;
  std::ofstream(bases_[0] / "mine") << state;
  std::filesystem::create_hard_link(bases_[0] / "mine", run.paths()[1] / "hard");
  std::filesystem::create_symlink(bases_[0] / "mine", run.paths()[1] / "soft");
  const FileDescriptor open(::open(pages.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(static_cast<bool>(open));
  run.remove();
  EXPECT_FALSE(std::filesystem::exists(pages));
  struct stat status {};
  ASSERT_EQ(::fstat(open.get(), &status), 0);
  EXPECT_EQ(status.st_size, 0);
  EXPECT_EQ(status.st_blocks, 0);
  EXPECT_EQ(std::filesystem::file_size(bases_[0] / "mine"), state.size()) << "it has another name";
}

TEST_F(RunFolderTest, one_folder_is_not_two_drives_however_it_is_written) {
  const std::filesystem::path a = bases_[0];
  std::filesystem::create_directory_symlink(a, folder_ / "link");
  for (const std::filesystem::path& again :
       {a, a / "", a / "." / "", folder_ / "b/../a", folder_ / "link"}) {
    const std::filesystem::path named[] = {a, bases_[1], again};
    const Error error = error_of([&] { require_distinct_folders("--path", named); });
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("--path names " + a.string() + " twice"),
                                    HasSubstr(again.string())));
  }
  EXPECT_TRUE(is_same_folder(folder_ / "none", folder_ / "none/"));
  EXPECT_FALSE(is_same_folder(folder_ / "none", folder_ / "other"));
  std::filesystem::create_symlink("loop", folder_ / "loop");
  EXPECT_FALSE(is_same_folder(folder_ / "loop/a", folder_ / "loop/b")) << "neither can be seen";
  require_distinct_folders("--path", bases_);
}

TEST_F(RunFolderTest, folders_on_one_file_system_share_its_space) {
  const auto free = static_cast<double>(free_bytes(bases_));
  EXPECT_TRUE(share_a_file_system(bases_));
  // Others write to the drive meanwhile.
  for (const std::uint64_t share : shares_of_free_bytes(bases_)) {
    EXPECT_NEAR(static_cast<double>(share), free / 2, free / 10);
  }
}

TEST_F(RunFolderTest, folders_on_two_file_systems_share_nothing) {
  if (!is_in_memory("/dev/shm")) GTEST_SKIP() << "/dev/shm is no file system of its own";
  const std::filesystem::path apart[] = {bases_[0], "/dev/shm"};
  EXPECT_FALSE(share_a_file_system(apart));
  const std::vector<std::uint64_t> shares = shares_of_free_bytes(apart);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    // Others write there meanwhile.
    const auto free = static_cast<double>(free_bytes(std::span(&apart[i], 1)));
    EXPECT_NEAR(static_cast<double>(shares[i]), free, free / 10);
  }
}

TEST_F(RunFolderTest, another_hosts_folder_is_unknown_until_its_user_says_so) {
  { const auto run = RunFolder::create(bases_, {.owner = "me"}); }
  RunRecord record = list_run_folders(bases_[0])[0];
  std::ofstream(record.path / "lock") << "owner me\nhost elsewhere\npid 1\nstart 1@x\nsince now\n";
  record = list_run_folders(bases_[0])[0];
  EXPECT_EQ(record.liveness, RunLiveness::unknown);
  EXPECT_THROW(remove_run_folder(record), Error);
  remove_run_folder(record, true);
  EXPECT_TRUE(list_run_folders(bases_[0]).empty());
}

TEST_F(RunFolderTest, bad_places_are_refused_in_a_sentence) {
  const std::filesystem::path missing[] = {folder_ / "none"};
  const Error none = error_of([&] { (void)RunFolder::create(missing, {}); });
  EXPECT_EQ(none.kind(), ErrorKind::usage);
  EXPECT_THAT(none.what(), AllOf(HasSubstr("none does not exist"), HasSubstr("create it")));
}

TEST_F(RunFolderTest, a_place_in_memory_is_refused_unless_it_is_allowed) {
  if (!is_in_memory("/dev/shm")) GTEST_SKIP() << "/dev/shm does not lie in memory";
  const std::filesystem::path memory[] = {"/dev/shm"};
  const Error error = error_of([&] { (void)RunFolder::create(memory, {}); });
  EXPECT_EQ(error.kind(), ErrorKind::usage);
  EXPECT_THAT(error.what(), HasSubstr("tmpfs"));
  RunFolder::create(memory, {.owner = "", .allow_memory = true}).remove();
}

TEST_F(RunFolderTest, a_place_that_cannot_be_written_is_refused) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  std::filesystem::permissions(bases_[0], std::filesystem::perms::owner_read);
  EXPECT_EQ(error_of([&] { (void)RunFolder::create(bases_, {}); }).kind(), ErrorKind::io);
  std::filesystem::permissions(bases_[0], std::filesystem::perms::owner_all);
}

TEST_F(RunFolderTest, a_store_that_does_not_fit_says_so_before_it_writes) {
  Log log([](LogLevel, std::string_view) {});
  const std::vector<PageSpec> pages = {{PageId(1), std::uint64_t{1} << 60, "huge"}};
  const StoreFolder folders[] = {{bases_[0], 1}};
  const Error error =
      error_of([&] { (void)PageStore::create(folders, pages, PageStoreOptions{}, log); });
  EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
  EXPECT_THAT(error.what(), AllOf(HasSubstr(bases_[0].string()), HasSubstr("are needed"),
                                  HasSubstr(std::to_string(std::uint64_t{2} << 60).substr(0, 8)),
                                  HasSubstr("are free")));
  EXPECT_TRUE(std::filesystem::is_empty(bases_[0]));
}

}  // namespace
}  // namespace terrace::io
