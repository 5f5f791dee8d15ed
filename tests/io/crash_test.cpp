// Whatever the instant of a kill or a power cut, the store opens at the last committed step and
// every page matches what that step wrote.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <iostream>
#include <new>
#include <optional>
#include <vector>

#include "io/page_contents.h"
#include "io/passing_driver.h"
#include "io/store_on_memory.h"
#include "io/temporary_folder.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/aligned_memory.h"
#include "terrace/io/page_channel.h"
#include "terrace/io/page_store.h"

namespace terrace::io {
namespace {

using terrace::testing::fill_page;
using terrace::testing::on_memory;
using terrace::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<PageSpec> specs(int count, std::uint64_t bytes) {
  std::vector<PageSpec> pages;
  for (int i = 0; i < count; ++i) {
    const auto id = static_cast<std::uint64_t>(i);
    pages.push_back({PageId(id), bytes + id * 1000, "page " + std::to_string(i)});
  }
  return pages;
}

/// Writes the pages of a step; page 0 only in every third, so that extents alternate differently.
void write_step(PageStore& store, PageChannel& channel, std::int64_t step) {
  std::vector<AlignedMemory> memory;
  for (const PageSpec& page : store.pages()) {
    if (page.id.value == 0 && step % 3 != 1) continue;
    memory.emplace_back(page.bytes);
    fill_page(memory.back().span(), page.id.value, static_cast<std::uint64_t>(step));
    channel.write(page.id, memory.back().span(), page.id.value);
  }
  std::uint64_t tags[16];
  while (channel.in_flight() > 0) (void)channel.wait(tags);
}

std::vector<std::byte> state_of(std::int64_t step) {
  std::vector<std::byte> state(100, std::byte(step));
  std::memcpy(state.data(), &step, sizeof(step));
  return state;
}

/// Empty when the store is exactly that of `step`, else what differs.
std::string difference(PageStore& store, std::int64_t step) {
  if (store.committed_version() != Version(step)) return "another version is committed";
  if (store.run_state() != state_of(step)) return "the run state differs";
  const auto channel = store.open_channel();
  for (const PageSpec& page : store.pages()) {
    const std::int64_t written = page.id.value == 0 ? (step - 1) / 3 * 3 + 1 : step;
    const AlignedMemory target(page.bytes), expected(page.bytes);
    fill_page(expected.span(), page.id.value, static_cast<std::uint64_t>(written));
    channel->read(page.id, target.span(), 0);
    std::uint64_t tag = 0;
    (void)channel->wait({&tag, 1});
    if (std::memcmp(target.data(), expected.data(), page.bytes) != 0) return page.description;
  }
  return "";
}

/// What the child tells the parent, in memory that both share.
struct Progress {
  enum Phase { opening, writing, committing, between };
  std::atomic<int> phase{opening};
  std::atomic<std::int64_t> committed{0};
};

[[noreturn]] void rewrite_for_ever(const std::filesystem::path& folder, Progress& progress) {
  Log log([](LogLevel, std::string_view) {});
  const std::filesystem::path folders[] = {folder};
  const auto store = PageStore::open(folders, PageStoreOptions{}, log);
  const auto channel = store->open_channel();
  std::int64_t step = store->committed_version() ? store->committed_version()->value : 0;
  while (true) {
    ++step;
    progress.phase = Progress::writing;
    write_step(*store, *channel, step);
    progress.phase = Progress::committing;
    store->commit(Version(step), state_of(step));
    progress.committed = step;
    progress.phase = Progress::between;
  }
}

TEST(Crash, killed_at_200_random_moments_the_store_opens_at_the_last_commit) {
  const TemporaryFolder folder;
  Log log([](LogLevel, std::string_view) {});
  const StoreFolder store_folder[] = {{folder.path(), 1}};
  (void)PageStore::create(store_folder, specs(12, 700 * kKiB), PageStoreOptions{}, log);
  void* shared =
      ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* progress = new (shared) Progress;
  const RandomStream random(20, 1);
  int kills[4] = {};
  for (std::uint64_t round = 0; round < 200; ++round) {
    progress->phase = Progress::opening;
    const pid_t child = ::fork();
    if (child == 0) rewrite_for_ever(folder.path(), *progress);
    while (progress->phase == Progress::opening) sleep_us(200);
    sleep_us(static_cast<std::int64_t>(random.below(round, 40'000)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const int phase = progress->phase;
    ++kills[phase];
    const std::filesystem::path folders[] = {folder.path()};
    const auto store = PageStore::open(folders, PageStoreOptions{}, log);
    const std::int64_t last = progress->committed;
    if (!store->committed_version()) {
      ASSERT_EQ(last, 0);
      continue;
    }
    const std::int64_t found = store->committed_version()->value;
    // A kill inside the commit may fall behind its last write.
    ASSERT_TRUE(found == last || (phase != Progress::writing && found == last + 1))
        << "round " << round << ": found " << found << ", committed " << last;
    ASSERT_EQ(difference(*store, found), "") << "round " << round;
    progress->committed = found;
  }
  std::cout << "kills inside a step's writes: " << kills[Progress::writing]
            << ", inside a commit: " << kills[Progress::committing]
            << ", between steps: " << kills[Progress::between] << "\n";
  RecordProperty("kills_inside_writes", kills[Progress::writing]);
  EXPECT_GE(kills[Progress::writing], 20);
  ::munmap(shared, sizeof(Progress));
}

// A killed process's transfers may land after it is gone; only its open files tell.
TEST(Crash, an_open_waits_until_nobody_else_can_write) {
  const TemporaryFolder folder;
  Log log([](LogLevel, std::string_view) {});
  const StoreFolder store_folder[] = {{folder.path(), 1}};
  (void)PageStore::create(store_folder, specs(1, kMiB), PageStoreOptions{}, log);
  const std::filesystem::path folders[] = {folder.path()};
  void* shared =
      ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* progress = new (shared) Progress;
  const pid_t child = ::fork();
  if (child == 0) {
    const auto held = PageStore::open(folders, PageStoreOptions{}, log);
    progress->phase = Progress::writing;
    sleep_us(200'000);
    progress->phase = Progress::between;
    ::_exit(0);
  }
  while (progress->phase == Progress::opening) sleep_us(200);
  PageStoreOptions looking;
  looking.beside_live_run = true;
  (void)PageStore::open(folders, looking, log);
  EXPECT_EQ(progress->phase, Progress::writing) << "looking waited";
  const auto store = PageStore::open(folders, PageStoreOptions{}, log);
  EXPECT_EQ(progress->phase, Progress::between) << "the open did not wait";
  ::waitpid(child, nullptr, 0);
  ::munmap(shared, sizeof(Progress));
}

/// A driver that says that it has flushed and has not: the control that shows the power-cut test
/// can fail.
class LyingDriver final : public terrace::testing::PassingDriver {
 public:
  using PassingDriver::PassingDriver;
  [[nodiscard]] std::string_view name() const override { return "lying"; }
  void push(const Piece& piece) override {
    if (piece.kind == Operation::flush) {
      flushed_.push_back({piece.slot, 0});
    } else {
      driver_->push(piece);
    }
  }
  [[nodiscard]] std::size_t reap(std::span<Outcome> outcomes, bool block) override {
    if (flushed_.empty()) return driver_->reap(outcomes, block);
    outcomes[0] = flushed_.back();
    flushed_.pop_back();
    return 1;
  }

 private:
  std::vector<Outcome> flushed_;
};

struct CutResult {
  bool in_commit = false;
  std::int64_t acknowledged = 0;  ///< the last commit that returned
  std::optional<std::int64_t> found;
  std::string difference;
};

/// Runs steps until the power is cut after `calls` transfers, then opens again and compares.
CutResult cut_power_after(std::uint64_t calls, std::uint64_t seed, bool flushes_lie) {
  Log log([](LogLevel, std::string_view) {});
  auto disk = std::make_shared<MemoryDisk>(MemoryDiskOptions{.seed = seed, .delay_max = 2});
  PageStoreOptions options = on_memory(disk);
  if (flushes_lie) {
    options.engine_factory = [disk](const EngineOptions& engine, Log& engine_log) {
      return std::make_unique<Engine>(std::make_unique<LyingDriver>(make_memory_driver(disk)),
                                      engine, engine_log);
    };
  }
  CutResult result;
  const StoreFolder folders[] = {{"/a", 1}, {"/b", 1}};
  {
    const auto store = PageStore::create(folders, specs(5, 60 * kKiB), options, log);
    // The files themselves are durable before the first step, whoever lies later.
    const auto channel = store->open_channel();
    disk->cut_power_after(calls);
    try {
      for (std::int64_t step = 1; step < 100; ++step) {
        result.in_commit = false;
        write_step(*store, *channel, step);
        result.in_commit = true;
        store->commit(Version(step), state_of(step));
        result.acknowledged = step;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::io);
    }
  }
  disk->power_on();
  try {
    const std::filesystem::path paths[] = {"/a", "/b"};
    const auto store = PageStore::open(paths, options, log);
    if (store->committed_version()) {
      result.found = store->committed_version()->value;
      result.difference = difference(*store, *result.found);
    }
  } catch (const Error& error) {
    result.difference = error.what();
  }
  return result;
}

bool is_exact(const CutResult& result) {
  const std::int64_t found = result.found.value_or(0);
  return result.difference.empty() &&
         (found == result.acknowledged || (result.in_commit && found == result.acknowledged + 1));
}

TEST(PowerCut, at_any_call_the_store_opens_at_the_last_commit) {
  int in_writes = 0, in_commits = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const CutResult result = cut_power_after(seed % 80 + 1, seed, false);
    ASSERT_TRUE(is_exact(result)) << "seed " << seed << ": committed " << result.acknowledged
                                  << ", found " << result.found.value_or(-1) << ": "
                                  << result.difference;
    ++(result.in_commit ? in_commits : in_writes);
  }
  std::cout << "cuts inside a step's writes: " << in_writes << ", inside a commit: " << in_commits
            << "\n";
  EXPECT_GE(in_writes, 20);
  EXPECT_GE(in_commits, 20);
}

TEST(PowerCut, a_drive_that_does_not_flush_is_found_out) {
  int damaged = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    if (!is_exact(cut_power_after(seed + 30, seed, true))) ++damaged;
  }
  EXPECT_GT(damaged, 25) << "the test above could not fail";
}

class BitFlip : public ::testing::Test {
 protected:
  void SetUp() override {
    const StoreFolder folders[] = {{"/a", 1}};
    const auto store = PageStore::create(folders, specs(4, 300 * kKiB), options_, log_);
    const auto channel = store->open_channel();
    for (std::int64_t step = 1; step <= 2; ++step) {
      write_step(*store, *channel, step);
      store->commit(Version(step), state_of(step));
    }
  }

  std::unique_ptr<PageStore> open() {
    const std::filesystem::path folders[] = {"/a"};
    return PageStore::open(folders, options_, log_);
  }

  Log log_{[](LogLevel, std::string_view) {}};
  std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>(MemoryDiskOptions{});
  PageStoreOptions options_ = on_memory(disk_);
};

TEST_F(BitFlip, in_a_page_is_found_and_the_page_named) {
  const auto store = open();
  const std::vector<PageSpec> pages = specs(4, 300 * kKiB);
  // Extent B of step 2 follows extent A of all pages; page 1 is the second of it.
  std::uint64_t extent_bytes = 0;
  for (const PageSpec& page : pages) extent_bytes += round_up(page.bytes, 4096);
  const std::uint64_t begin = 4096 + extent_bytes + round_up(pages[0].bytes, 4096);
  disk_->flip_bit("/a/pages", (begin + 270 * kKiB) * 8 + 3);
  const auto channel = store->open_channel();
  const AlignedMemory target(pages[1].bytes);
  try {
    channel->read(PageId(1), target.span(), 0);
    std::uint64_t tag = 0;
    (void)channel->wait({&tag, 1});
    FAIL() << "the flipped bit went through";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::io);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("page 1 (page 1)"), HasSubstr("/a/pages"),
                                    HasSubstr("offset " + std::to_string(begin + 256 * kKiB)),
                                    HasSubstr("was expected")));
  }
}

TEST_F(BitFlip, in_the_newest_manifest_record_falls_back_to_the_commit_before) {
  const std::string before = difference(*open(), 2);
  EXPECT_EQ(before, "");
  // Sequence numbers 1 and 2 were written; 2 lies in the first slot. Its place is found by what it
  // holds: flip each block until the version changes.
  bool fell_back = false;
  for (std::uint64_t block = 1; block < 8 && !fell_back; ++block) {
    disk_->flip_bit("/a/manifest", (block * 4096 + 32) * 8);
    try {
      const auto store = open();
      if (store->committed_version() == Version(1)) {
        fell_back = true;
        EXPECT_EQ(difference(*store, 1), "");
      }
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("/a/manifest"));
    }
    disk_->flip_bit("/a/manifest", (block * 4096 + 32) * 8);
  }
  EXPECT_TRUE(fell_back);
}

}  // namespace
}  // namespace terrace::io
