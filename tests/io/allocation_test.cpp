// Nothing is allocated on the step path: reads, writes, waits and commits of a running store.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "io/temporary_folder.h"
#include "terrace/core/units.h"
#include "terrace/io/aligned_memory.h"
#include "terrace/io/page_channel.h"

namespace {
std::atomic<long> allocations{0};  // The replaced operator has no other way to tell.
}

// Not inlined: g++ would see malloc and delete paired, and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace terrace::io {
namespace {

class AllocationTest : public ::testing::TestWithParam<DriverKind> {};

TEST_P(AllocationTest, a_step_makes_none) {
  const terrace::testing::TemporaryFolder folder;
  Log log([](LogLevel, std::string_view) {});
  PageStoreOptions options;
  options.engine.driver = GetParam();
  options.flush_every_bytes = 4 * kMiB;
  std::vector<PageSpec> pages;
  for (std::uint64_t i = 0; i < 6; ++i) pages.push_back({PageId(i), 3 * kMiB + i, "page"});
  const StoreFolder folders[] = {{folder.path(), 1}};
  const auto store = PageStore::create(folders, pages, options, log);
  const auto channel = store->open_channel();
  const AlignedMemory memory(6 * 4 * kMiB);
  const std::vector<std::byte> run_state(1000);
  const auto step = [&](std::int64_t version) {
    std::uint64_t tags[4];
    for (const bool writes : {true, false}) {
      for (std::uint64_t i = 0; i < 6; ++i) {
        const auto page = memory.span().subspan(i * 4 * kMiB, 4 * kMiB);
        writes ? channel->write(PageId(i), page, i) : channel->read(PageId(i), page, i);
      }
      while (channel->in_flight() > 0) (void)channel->wait(tags);
    }
    store->commit(Version(version), run_state);
  };
  for (std::int64_t version = 1; version < 4; ++version) step(version);
  const long before = allocations;
  for (std::int64_t version = 4; version < 10; ++version) step(version);
  const long after = allocations;
  EXPECT_EQ(after - before, 0);
  EXPECT_GT(before, 0) << "the count itself does not work";
}

INSTANTIATE_TEST_SUITE_P(Drivers, AllocationTest,
                         ::testing::Values(DriverKind::uring, DriverKind::threads),
                         [](const auto& kind) {
                           return kind.param == DriverKind::uring ? "uring" : "threads";
                         });

}  // namespace
}  // namespace terrace::io
