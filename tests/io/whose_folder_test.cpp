// Whose a folder on a drive is, and that nobody else ever changes it: what stands beside it, what a
// full drive, a lost lock or a file system without locks leave.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <cerrno>
#include <fstream>
#include <vector>

#include "core/error_of.h"
#include "io/child.h"
#include "io/forbidden_locks.h"
#include "io/small_file_system.h"
#include "io/store_on_memory.h"
#include "io/temporary_folder.h"
#include "terrace/io/free_space.h"
#include "terrace/io/page_store.h"
#include "terrace/io/run_folder.h"

namespace terrace::io {
namespace {

namespace fs = std::filesystem;
using terrace::testing::Child;
using terrace::testing::error_of;
using terrace::testing::forbid_locks;
using terrace::testing::in_child;
using terrace::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr RunId kX{1, 0x10}, kY{2, 0x20};

std::string read(const fs::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class WhoseFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (is_in_memory(folder_.path())) GTEST_SKIP() << "the working folder lies in memory";
    for (const char* name : {"a", "b"}) {
      fs::create_directory(folder_ / name);
      bases_.push_back(folder_ / name);
    }
  }

  /// A store with a commit, whose lock the caller has as long as it keeps what is returned.
  RunFolder make_store(const RunId& run, std::span<const fs::path> bases) {
    RunFolder folder = RunFolder::create(bases, {.owner = "rank 0 of /out", .run = run});
    std::vector<StoreFolder> folders;
    for (const fs::path& path : folder.paths()) folders.push_back({path, 1});
    PageStoreOptions options;
    options.id = folder.id();
    const std::vector<PageSpec> pages = {{PageId(1), 10'000, "one"}};
    PageStore::create(folders, pages, options, log_)->commit(Version(7), {});
    return folder;
  }
  [[nodiscard]] std::optional<Version> committed(const fs::path& first) {
    const fs::path paths[] = {first};
    return PageStore::open(paths, {}, log_)->committed_version();
  }
  [[nodiscard]] RunRecord found(const RunId& run) {
    const auto records = RunFolder::find(bases_, run);
    return records.size() == 1 ? records[0] : RunRecord{};
  }

  TemporaryFolder folder_;
  std::vector<fs::path> bases_;
  Log log_{[](LogLevel, std::string_view) {}};
};

TEST_F(WhoseFolderTest, a_sibling_that_is_another_runs_is_left_alone_and_named) {
  fs::path x_on_a, x_on_b;
  {
    const RunFolder x = make_store(kX, bases_);
    x_on_a = x.paths()[0];
    x_on_b = x.paths()[1];
  }
  // Its first drive is wiped, and another run has a folder in its place there.
  fs::remove_all(x_on_a);
  auto y = std::make_unique<RunFolder>(make_store(kY, std::span(bases_).first(1)));
  fs::rename(y->paths()[0], x_on_a);
  for (const char* state : {"live", "dead"}) {
    SCOPED_TRACE(state);
    fs::copy(x_on_b, folder_ / "kept");
    const RunRecord part = list_run_folders(bases_[1]).at(0);
    EXPECT_EQ(part.id.run, kX);
    EXPECT_THAT(error_of([&] { (void)RunFolder::adopt(part, {}); }).what(),
                AllOf(HasSubstr(x_on_a.string() + " is of another run"), HasSubstr(state)));
    EXPECT_THAT(remove_run_folder(part).kept,
                ElementsAre(AllOf(HasSubstr(x_on_a.string()), HasSubstr(state))));
    EXPECT_FALSE(fs::exists(x_on_b));
    EXPECT_EQ(committed(x_on_a), Version(7));
    EXPECT_EQ(list_run_folders(bases_[0]).at(0).id.run, kY) << "its record is its own";
    fs::rename(folder_ / "kept", x_on_b);
    y.reset();
  }
}

TEST_F(WhoseFolderTest, a_store_stays_whole_while_any_of_its_folders_is_held) {
  const RunFolder x = make_store(kX, bases_);
  fs::remove(x.paths()[0] / "lock");  // So on the first drive nobody seems to hold it.
  const RunRecord record = found(kX);
  EXPECT_EQ(record.liveness, RunLiveness::dead);
  EXPECT_THAT(error_of([&] { (void)remove_run_folder(record, true); }).what(),
              HasSubstr("is live"));
  EXPECT_THAT(error_of([&] { (void)RunFolder::adopt(record, {}); }).what(),
              HasSubstr("is in use by"));
  EXPECT_TRUE(PageStore::is_made(x.paths()[0]));
}

TEST_F(WhoseFolderTest, two_runs_of_one_path_find_each_its_own) {
  const fs::path x = make_store(kX, bases_).paths()[0];
  const fs::path y = make_store(kY, bases_).paths()[0];
  EXPECT_EQ(found(kX).path, x);
  EXPECT_EQ(found(kY).path, y);
  EXPECT_EQ(found(kX).owner, found(kY).owner);
  EXPECT_TRUE(RunFolder::find(bases_, RunId()).empty()) << "none is nobody's";
}

TEST_F(WhoseFolderTest, a_store_whose_locks_were_deleted_says_whose_it_is) {
  const fs::path first = make_store(kX, bases_).paths()[0];
  for (const fs::path& base : bases_) fs::remove(base / first.filename() / "lock");
  const RunRecord record = found(kX);
  EXPECT_EQ(record.path, first);
  EXPECT_EQ(record.folders.size(), 2U);
  EXPECT_EQ(list_run_folders(bases_[1]).at(0).id, record.id);
  const RunFolder adopted = RunFolder::adopt(record, {.owner = "again"});
  EXPECT_EQ(committed(first), Version(7));
  EXPECT_EQ(list_run_folders(bases_[1]).at(0).owner, "again");
}

TEST_F(WhoseFolderTest, a_store_that_has_vanished_is_refused_in_words) {
  make_store(kX, bases_);
  const RunRecord record = found(kX);
  remove_run_folder(record);
  EXPECT_EQ(remove_run_folder(record).bytes, 0U) << "that is what was wanted";
  EXPECT_THAT(error_of([&] { (void)RunFolder::adopt(record, {}); }).what(),
              HasSubstr("has vanished"));
  EXPECT_TRUE(fs::is_empty(bases_[0]));
}

TEST_F(WhoseFolderTest, a_manifest_that_was_cut_short_is_no_store_and_goes_with_its_folder) {
  {
    const RunFolder x = RunFolder::create(bases_, {.owner = "me", .run = kX});
    std::ofstream(x.paths()[0] / "manifest.new").close();
    EXPECT_FALSE(PageStore::is_made(x.paths()[0]));
  }
  remove_run_folder(found(kX));
  for (const fs::path& base : bases_) EXPECT_TRUE(fs::is_empty(base));
}

TEST_F(WhoseFolderTest, a_drive_that_is_full_leaves_each_record_as_it_was) {
  const terrace::testing::SmallFileSystem small(folder_.path());
  if (!small.mounted()) GTEST_SKIP() << "this process may not mount a file system";
  bases_ = {small.path()};
  const fs::path first = make_store(kX, bases_).paths()[0];
  const std::string before = read(first / "lock");
  small.fill(0);
  int crumbs = 0;  // what is too small for the filler
  const auto crumb = [&](int i) { return small.path() / ("crumb" + std::to_string(i)); };
  while ((std::ofstream(crumb(crumbs++)) << "x").flush()) {
  }
  const Error error = error_of([&] { (void)RunFolder::adopt(found(kX), {.owner = "other"}); });
  EXPECT_EQ(error.kind(), ErrorKind::io);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("ENOSPC"), HasSubstr("stays as it was")));
  EXPECT_EQ(read(first / "lock"), before);
  small.empty();
  while (crumbs > 0) fs::remove(crumb(--crumbs));
  const RunFolder adopted = RunFolder::adopt(found(kX), {.owner = "other"});
  EXPECT_EQ(committed(first), Version(7));
}

TEST_F(WhoseFolderTest, making_and_cleaning_at_once_loses_nothing_that_is_made) {
  Child cleaner([&] {
    if (::fork() != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) {
      for (const fs::path& base : {bases_[1], bases_[0]}) {
        for (const RunRecord& record : list_run_folders(base)) {
          try {
            if (record.liveness == RunLiveness::dead) remove_run_folder(record);
          } catch (const Error&) {  // It lives by now.
          }
        }
      }
    }
  });
  int adopted = 0, refused = 0;
  for (int round = 0; round < 200; ++round) {
    std::optional<RunFolder> made = RunFolder::create(bases_, {.owner = "me", .run = kX});
    for (const fs::path& path : made->paths()) std::ofstream(path / "mark") << "whole";
    const RunRecord record = list_run_folders(bases_[0]).at(0);
    made.reset();
    try {
      made = RunFolder::adopt(record, {.owner = "me"});
      for (const fs::path& path : made->paths()) ASSERT_EQ(read(path / "mark"), "whole");
      ASSERT_EQ(made->paths().size(), 2U);
      ++adopted;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::usage) << error.what();
      ++refused;
    }
    if (made) made->remove();
  }
  RecordProperty("adopted", adopted);
  RecordProperty("refused", refused);
  EXPECT_EQ(adopted + refused, 200);
}

TEST_F(WhoseFolderTest, where_flock_is_refused_the_lock_holds_all_the_same) {
  const RunFolder x = make_store(kX, bases_);
  EXPECT_EQ(in_child([&] {
              forbid_locks(true);
              const RunRecord record = found(kX);
              if (record.liveness != RunLiveness::live) return 1;
              if (error_of([&] { (void)RunFolder::adopt(record, {}); }).kind() != ErrorKind::usage)
                return 2;
              const RunFolder own = RunFolder::create(bases_, {.owner = "me", .run = kY});
              return found(kY).liveness == RunLiveness::live ? 0 : 3;
            }),
            0);
}

TEST_F(WhoseFolderTest, where_there_are_no_locks_nothing_is_taken_unless_its_user_says_so) {
  const Child other([&] {
    forbid_locks(false);
    new RunFolder(RunFolder::create(bases_, {.owner = "me", .run = kX, .unlocked = true}));
  });
  EXPECT_EQ(
      in_child([&] {
        forbid_locks(false);
        try {
          (void)RunFolder::create(bases_, {.owner = "me", .run = kY});
          return 1;
        } catch (const Error& error) {
          if (error.kind() != ErrorKind::usage) return 2;
          if (std::string(error.what()).find("--no_lock") == std::string::npos) return 3;
        }
        if (found(kY).id.run) return 4;
        // A process of this host is seen without a lock too.
        const RunRecord record = found(kX);
        if (record.liveness != RunLiveness::live) return 5;
        std::string text = read(record.path / "lock");
        const std::size_t at = text.find("space pid:");
        if (at == std::string::npos) return 6;
        text.replace(at, 10, "space qid:");
        for (const fs::path& path : record.folders) std::ofstream(path / "lock") << text;
        // One in another container is not.
        if (found(kX).liveness != RunLiveness::unknown) return 7;
        if (error_of([&] { (void)RunFolder::adopt(found(kX), {}); }).kind() != ErrorKind::usage)
          return 8;
        if (error_of([&] { (void)remove_run_folder(found(kX)); }).kind() != ErrorKind::usage)
          return 9;
        if (!fs::exists(record.path)) return 10;
        remove_run_folder(found(kX), true);
        return fs::exists(record.path) ? 11 : 0;
      }),
      0);
}

TEST_F(WhoseFolderTest, what_the_lock_of_a_dead_run_on_another_host_says_can_be_told_by_the_lock) {
  { const RunFolder x = make_store(kX, bases_); }
  for (const fs::path& path : found(kX).folders) {
    std::string text = read(path / "lock");
    for (const char* key : {"\nhost ", "\nstart ", "\nspace "})
      text.insert(text.find(key) + 7, "x");
    std::ofstream(path / "lock") << text;
  }
  EXPECT_EQ(found(kX).liveness, RunLiveness::dead) << "it could lock, and the lock is free";
}

TEST(ManifestSlot, that_cannot_be_read_is_as_a_damaged_one_and_the_other_counts) {
  for (const std::uint64_t from_end : {1U, 2U}) {
    const auto disk = std::make_shared<MemoryDisk>(MemoryDiskOptions{});
    std::vector<std::string> lines;
    Log log([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
    PageStoreOptions options = terrace::testing::on_memory(disk);
    options.run_state_bytes_max = 100;
    const std::vector<PageSpec> pages = {{PageId(1), 10'000, "one"}};
    const StoreFolder folders[] = {{"/a", 1}};
    const fs::path paths[] = {"/a"};
    {
      const auto store = PageStore::create(folders, pages, options, log);
      for (const std::int64_t step : {1, 2, 3}) store->commit(Version(step), {});
    }
    // Head, list of pages, and two slots, of a block each.
    constexpr std::uint64_t kBlock = PageStore::kAlignment;
    disk->add_fault({.path_part = "manifest",
                     .offset_begin = (4 - from_end) * kBlock,
                     .offset_end = (5 - from_end) * kBlock,
                     .times = 1000,
                     .error = EIO});
    const auto store = PageStore::open(paths, options, log);
    // The first slot is of even commits.
    EXPECT_EQ(store->committed_version(), Version(from_end == 1 ? 2 : 3));
    EXPECT_THAT(lines, ::testing::Contains(AllOf(HasSubstr("cannot be read"), HasSubstr("EIO"))));
  }
}

}  // namespace
}  // namespace terrace::io
