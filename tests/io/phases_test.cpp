// Reads and writes of one store, held apart or mixed, by two threads as a run has them.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "io/page_contents.h"
#include "io/passing_driver.h"
#include "io/temporary_folder.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/aligned_memory.h"
#include "terrace/io/page_channel.h"

namespace terrace::io {
namespace {

using terrace::testing::fill_page;
using terrace::testing::same_bytes;
using terrace::testing::TemporaryFolder;

/// Transfers of the store's channels that the drive has, and whether it ever had both kinds.
struct Seen {
  std::array<std::atomic<int>, 2> in_flight{};  ///< by kind
  std::atomic<int> transfers{0};
  std::atomic<bool> both{false};
};

class WatchedDriver final : public terrace::testing::PassingDriver {
 public:
  WatchedDriver(std::unique_ptr<Driver> driver, Seen& seen, int depth)
      : PassingDriver(std::move(driver)), seen_(seen), kinds_(static_cast<std::size_t>(depth)) {}

  void push(const Piece& piece) override {
    kinds_[piece.slot] = piece.kind;
    if (piece.kind != Operation::flush) {
      ++seen_.transfers;
      ++in_flight(piece.kind);
      if (in_flight(Operation::read) > 0 && in_flight(Operation::write) > 0) seen_.both = true;
    }
    driver_->push(piece);
  }
  [[nodiscard]] std::size_t reap(std::span<Outcome> outcomes, bool block) override {
    const std::size_t count = driver_->reap(outcomes, block);
    for (std::size_t i = 0; i < count; ++i) {
      const Operation kind = kinds_[outcomes[i].slot];
      if (kind != Operation::flush) --in_flight(kind);
    }
    return count;
  }

 private:
  std::atomic<int>& in_flight(Operation kind) {
    return seen_.in_flight[kind == Operation::read ? 0 : 1];
  }

  Seen& seen_;
  std::vector<Operation> kinds_;  ///< by slot
};

/// A queue whose calls fail from a given one on, as when the kernel is out of memory.
class BreakingDriver final : public terrace::testing::PassingDriver {
 public:
  BreakingDriver(std::unique_ptr<Driver> driver, std::atomic<int>& calls_left)
      : PassingDriver(std::move(driver)), calls_left_(calls_left) {}

  void start() override {
    check();
    driver_->start();
  }
  [[nodiscard]] std::size_t reap(std::span<Outcome> outcomes, bool block) override {
    check();
    return driver_->reap(outcomes, block);
  }

 private:
  void check() {
    if (calls_left_-- == 0) fail(ErrorKind::io, "the queue failed");
  }
  std::atomic<int>& calls_left_;
};

constexpr std::uint64_t kPageBytes = 3 * kMiB;
constexpr std::uint64_t kPages = 24;  // half of them read, half of them written
constexpr int kRounds = 5;

PageStoreOptions options_of(std::optional<Phases> phases, Seen& seen) {
  PageStoreOptions options;
  options.engine.depth = 4;
  options.engine.piece_bytes = 256 * kKiB;  // a turn is then shorter than what a round moves
  options.phases = phases;
  options.engine_factory = [&seen](const EngineOptions& engine, Log& log) {
    const int depth = Engine::driver_depth(engine);
    return std::make_unique<Engine>(
        std::make_unique<WatchedDriver>(make_thread_driver({.depth = depth}), seen, depth), engine,
        log);
  };
  return options;
}

/// Moves pages `first` to `first + kPages / 2` again and again.
template <class Start>
void move_pages(PageStore& store, std::uint64_t first, const Start& start) {
  const auto channel = store.open_channel();
  std::array<std::uint64_t, 8> done{};
  for (int round = 0; round < kRounds; ++round) {
    for (std::uint64_t page = first; page < first + kPages / 2; ++page) start(*channel, page);
    while (channel->in_flight() > 0) (void)channel->wait(done);
  }
}

/// Reads one half of a store while the other half is written, and checks both.
void read_and_write(PageStore& store) {
  std::vector<AlignedMemory> memory;
  for (std::uint64_t page = 0; page < kPages; ++page) memory.emplace_back(kPageBytes);
  const auto write = [&](PageChannel& channel, std::uint64_t page) {
    channel.write(PageId(page), memory[page].span(), page);
  };
  const auto read = [&](PageChannel& channel, std::uint64_t page) {
    channel.read(PageId(page), memory[page].span(), page);
  };
  for (std::uint64_t page = 0; page < kPages; ++page) fill_page(memory[page].span(), page, 1);
  move_pages(store, 0, write);
  std::thread reader([&] { move_pages(store, 0, read); });
  move_pages(store, kPages / 2, write);
  reader.join();
  move_pages(store, kPages / 2, read);
  const AlignedMemory expected(kPageBytes);
  for (std::uint64_t page = 0; page < kPages; ++page) {
    fill_page(expected.span(), page, 1);
    EXPECT_TRUE(same_bytes(memory[page].span(), expected.span())) << "page " << page;
  }
}

class PhasesTest : public ::testing::Test {
 protected:
  std::unique_ptr<PageStore> create(std::optional<Phases> phases, Seen& seen) {
    const StoreFolder folders[] = {{folder_.path(), 1}};
    std::vector<PageSpec> pages;
    for (std::uint64_t page = 0; page < kPages; ++page) {
      pages.push_back({PageId(page), kPageBytes, "page"});
    }
    return PageStore::create(folders, pages, options_of(phases, seen), log_);
  }

  TemporaryFolder folder_;
  Log log_{[](LogLevel, std::string_view) {}};
  std::atomic<int> calls_left_{-1};  ///< of a breaking queue
};

TEST_F(PhasesTest, apart_means_that_a_drive_never_has_both_kinds_at_once) {
  Seen seen;
  const auto store = create(Phases::apart, seen);
  read_and_write(*store);
  EXPECT_GT(seen.transfers, kRounds * static_cast<int>(kPages));
  EXPECT_FALSE(seen.both);
}

TEST_F(PhasesTest, mixed_is_the_default_and_lets_both_go_on) {
  Seen seen;
  const auto store = create(std::nullopt, seen);
  for (int attempt = 0; attempt < 20 && !seen.both; ++attempt) read_and_write(*store);
  EXPECT_TRUE(seen.both);
}

TEST_F(PhasesTest, a_store_is_opened_as_it_was_made_unless_told_otherwise) {
  Seen seen;
  create(Phases::apart, seen)->commit(Version(1), {});
  const std::filesystem::path folders[] = {folder_.path()};
  EXPECT_EQ(PageStore::open(folders, options_of(std::nullopt, seen), log_)->phases(),
            Phases::apart);
  EXPECT_EQ(PageStore::open(folders, options_of(Phases::mixed, seen), log_)->phases(),
            Phases::mixed);
}

TEST_F(PhasesTest, a_channel_that_is_gone_gives_its_turn_back) {
  Seen seen;
  const auto store = create(Phases::apart, seen);
  const AlignedMemory memory(kPageBytes);
  fill_page(memory.span(), 1, 1);
  {
    const auto first = store->open_channel();
    first->write(PageId(1), memory.span(), 0);
  }
  const auto second = store->open_channel();
  std::uint64_t tag = 0;
  second->write(PageId(2), memory.span(), 7);
  while (second->in_flight() > 0) (void)second->wait({&tag, 1});
  EXPECT_EQ(tag, 7U);
}

TEST_F(PhasesTest, a_channel_whose_queue_fails_lets_the_others_go_on) {
  Seen seen;
  const auto store = [&] {
    const StoreFolder folders[] = {{folder_.path(), 1}};
    std::vector<PageSpec> pages;
    for (std::uint64_t page = 0; page < kPages; ++page) {
      pages.push_back({PageId(page), kPageBytes, "page"});
    }
    PageStoreOptions options = options_of(Phases::apart, seen);
    options.engine_factory = [this](const EngineOptions& engine, Log& log) {
      const int depth = Engine::driver_depth(engine);
      return std::make_unique<Engine>(
          std::make_unique<BreakingDriver>(make_thread_driver({.depth = depth}), calls_left_),
          engine, log);
    };
    return PageStore::create(folders, pages, options, log_);
  }();
  const AlignedMemory memory(kPageBytes);
  fill_page(memory.span(), 1, 1);
  std::uint64_t tag = 0;
  for (int calls = 0; calls < 8; ++calls) {
    const auto first = store->open_channel();
    const auto second = store->open_channel();
    const auto page = static_cast<std::uint64_t>(2 * calls);
    calls_left_ = calls;
    EXPECT_THROW(
        {
          first->write(PageId(page), memory.span(), 0);
          while (first->in_flight() > 0) (void)first->wait({&tag, 1});
        },
        Error)
        << calls;
    second->write(PageId(page + 1), memory.span(), 7);
    while (second->in_flight() > 0) (void)second->wait({&tag, 1});
    EXPECT_EQ(tag, 7U);
  }
}

TEST_F(PhasesTest, a_channel_that_is_abandoned_gives_its_turn_back) {
  Seen seen;
  const auto store = create(Phases::apart, seen);
  const AlignedMemory memory(kPageBytes);
  fill_page(memory.span(), 1, 1);
  const auto first = store->open_channel();
  first->write(PageId(1), memory.span(), 0);
  first->abandon();
  const auto second = store->open_channel();
  std::uint64_t tag = 0;
  second->write(PageId(2), memory.span(), 7);
  while (second->in_flight() > 0) (void)second->wait({&tag, 1});
  EXPECT_EQ(tag, 7U);
}

}  // namespace
}  // namespace terrace::io
