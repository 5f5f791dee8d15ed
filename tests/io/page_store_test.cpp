#include "terrace/io/page_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "io/page_contents.h"
#include "io/store_on_memory.h"
#include "io/temporary_folder.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/aligned_memory.h"
#include "terrace/io/checksum.h"
#include "terrace/io/page_channel.h"

namespace terrace::io {
namespace {

using terrace::testing::fill_page;
using terrace::testing::on_memory;
using terrace::testing::same_bytes;
using terrace::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<std::uint64_t> kSizes = {1,    511,        513,          4095,    4096,
                                           4097, 256 * kKiB, 3 * kMiB + 7, 5 * kMiB};

std::vector<PageSpec> specs() {
  std::vector<PageSpec> pages;
  for (const std::uint64_t bytes : kSizes) {
    pages.push_back({PageId(1000 + bytes), bytes, "page of " + std::to_string(bytes)});
  }
  return pages;
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

struct Subject {
  std::string name;
  std::function<PageStoreOptions()> options;
};

class PageStoreTest : public ::testing::TestWithParam<Subject> {
 protected:
  PageStoreTest() : options_(GetParam().options()) {
    std::filesystem::create_directory(folder_ / "a");
    std::filesystem::create_directory(folder_ / "b");
    folders_ = {{folder_ / "a", 1}, {folder_ / "b", 2}};
  }

  std::unique_ptr<PageStore> create() {
    return PageStore::create(folders_, specs(), options_, log_);
  }
  std::unique_ptr<PageStore> open() {
    const std::filesystem::path first[] = {folder_ / "a"};
    return PageStore::open(first, options_, log_);
  }

  static void finish(PageChannel& channel) {
    std::uint64_t tags[4];
    while (channel.in_flight() > 0) (void)channel.wait(tags);
  }

  static void write_all(PageStore& store, std::uint64_t version) {
    write_pages(store, store.pages(), version);
  }
  static void write_pages(PageStore& store, std::span<const PageSpec> pages,
                          std::uint64_t version) {
    const auto channel = store.open_channel();
    std::vector<AlignedMemory> memory;
    for (const PageSpec& page : pages) {
      memory.emplace_back(page.bytes);
      fill_page(memory.back().span(), page.id.value, version);
      channel->write(page.id, memory.back().span(), page.id.value);
    }
    finish(*channel);
  }

  static void expect_all(PageStore& store, std::uint64_t version) {
    expect_pages(store, store.pages(), version);
  }
  static void expect_pages(PageStore& store, std::span<const PageSpec> pages,
                           std::uint64_t version) {
    const auto channel = store.open_channel();
    for (const PageSpec& page : pages) {
      const AlignedMemory target(page.bytes), expected(page.bytes);
      fill_page(expected.span(), page.id.value, version);
      channel->read(page.id, target.span(), 7);
      std::uint64_t tag = 0;
      ASSERT_EQ(channel->wait({&tag, 1}), 1U);
      EXPECT_EQ(tag, 7U);
      EXPECT_TRUE(same_bytes(target.span().first(page.bytes), expected.span().first(page.bytes)))
          << page.description << " is not that of version " << version;
    }
  }

  TemporaryFolder folder_;
  Log log_{[](LogLevel, std::string_view) {}};
  PageStoreOptions options_;
  std::vector<StoreFolder> folders_;
};

TEST_P(PageStoreTest, reopens_at_the_last_commit) {
  {
    const auto store = create();
    EXPECT_FALSE(store->committed_version());
    write_all(*store, 1);
    expect_all(*store, 1);
    store->commit(Version(1), bytes_of("step 1"));
    write_all(*store, 2);
    store->commit(Version(2), bytes_of("step two"));
    write_all(*store, 3);
    write_all(*store, 4);  // Over the same uncommitted extents.
    expect_all(*store, 4);
  }
  const auto store = open();
  EXPECT_EQ(store->committed_version(), Version(2));
  EXPECT_EQ(store->run_state(), bytes_of("step two"));
  ASSERT_EQ(store->pages().size(), kSizes.size());
  EXPECT_EQ(store->pages()[3].description, "page of 4095");
  expect_all(*store, 2);
  write_all(*store, 5);
  store->commit(Version(5), {});
  expect_all(*store, 5);
}

TEST_P(PageStoreTest, without_a_commit_nothing_is_there) {
  { write_all(*create(), 1); }
  const auto store = open();
  EXPECT_FALSE(store->committed_version());
  EXPECT_FALSE(store->committed_version(store->pages()[0].id));
  const auto channel = store->open_channel();
  const AlignedMemory target(4096);
  EXPECT_THROW(channel->read(store->pages()[0].id, target.span(), 0), Error);
}

TEST_P(PageStoreTest, a_page_that_is_not_rewritten_keeps_its_committed_contents) {
  const PageId changed = specs()[7].id;
  {
    const auto store = create();
    write_all(*store, 1);
    store->commit(Version(1), {});
    const AlignedMemory source(kSizes[7]);
    for (std::int64_t version = 2; version < 5; ++version) {
      fill_page(source.span(), changed.value, static_cast<std::uint64_t>(version));
      const auto channel = store->open_channel();
      channel->write(changed, source.span(), 0);
      finish(*channel);
      store->commit(Version(version), {});
    }
  }
  const auto store = open();
  EXPECT_EQ(store->committed_version(changed), Version(4));
  EXPECT_EQ(store->committed_version(specs()[0].id), Version(1));
  const auto channel = store->open_channel();
  for (const PageSpec& page : store->pages()) {
    const AlignedMemory target(page.bytes), expected(page.bytes);
    fill_page(expected.span(), page.id.value, page.id == changed ? 4 : 1);
    channel->read(page.id, target.span(), 0);
    finish(*channel);
    EXPECT_TRUE(same_bytes(target.span().first(page.bytes), expected.span().first(page.bytes)));
  }
}

TEST_P(PageStoreTest, a_discard_brings_the_committed_contents_back) {
  {
    const auto store = create();
    write_all(*store, 1);
    store->commit(Version(1), {});
    write_all(*store, 2);
    expect_all(*store, 2);
    store->discard();
    expect_all(*store, 1);
    store->commit(Version(2), {});  // of a step that changed nothing
    write_all(*store, 3);
    store->discard();
  }
  const auto store = open();
  EXPECT_EQ(store->committed_version(), Version(2));
  expect_all(*store, 1);
  write_all(*store, 4);
  store->commit(Version(4), {});
  expect_all(*store, 4);
}

TEST_P(PageStoreTest, no_commit_discard_or_open_knows_of_scratch) {
  const std::vector<PageSpec> scratch = {{PageId(1), 5 * kMiB, "scratch"},
                                         {PageId(2), 4097, "a little scratch"}};
  for (const int extents : {2, 1}) {
    options_.extents_per_page = extents;
    {
      const auto store = create();
      EXPECT_THROW(store->add_scratch({{{specs()[0].id, 1, "an id of a page"}}}), Error);
      store->add_scratch(scratch);
      EXPECT_EQ(store->pages().size(), kSizes.size());
      write_all(*store, 1);
      store->commit(Version(1), {});
      write_pages(*store, scratch, 2);
      EXPECT_FALSE(store->was_torn());
      if (extents == 2) {
        write_all(*store, 2);
        store->discard();
      }
      expect_all(*store, 1);
      expect_pages(*store, scratch, 2);
      write_pages(*store, scratch, 3);
      expect_pages(*store, scratch, 3);
      store->commit(Version(2), {});
      write_pages(*store, scratch, 4);
    }
    const auto store = open();
    EXPECT_EQ(store->committed_version(), Version(2));
    expect_all(*store, 1);
    if (options_.engine_factory) break;  // of files in memory there is no folder
    EXPECT_FALSE(std::filesystem::exists(folder_ / "a" / "scratch"));
    store->add_scratch(scratch);
    EXPECT_THROW(expect_pages(*store, scratch, 4), Error) << "never written";
    write_pages(*store, scratch, 5);
    expect_pages(*store, scratch, 5);
    for (const auto& folder : folders_) std::filesystem::remove_all(folder.path);
    for (const auto& folder : folders_) std::filesystem::create_directory(folder.path);
  }
}

TEST_P(PageStoreTest, scratch_that_comes_back_with_other_bytes_is_refused) {
  if (options_.engine_factory) GTEST_SKIP() << "of files in memory there is no folder";
  const auto store = create();
  const std::vector<PageSpec> scratch = {{PageId(1), 3 * kMiB, "scratch"}};
  store->add_scratch(scratch);
  write_pages(*store, scratch, 1);
  std::fstream file(folder_ / "b" / "scratch", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(kMiB);
  file.put('x').put('y').flush();
  ASSERT_TRUE(file.good());
  try {
    expect_pages(*store, scratch, 1);
    FAIL() << "other bytes passed for what was written";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("/b/scratch"), HasSubstr("checksum")));
  }
}

TEST_P(PageStoreTest, checksums_given_by_the_caller_are_those_of_the_blocks) {
  const auto store = create();
  const PageSpec page = specs()[7];
  const AlignedMemory memory(page.bytes);
  fill_page(memory.span(), 1, 1);
  std::vector<std::uint64_t> sums;
  for (std::uint64_t begin = 0; begin < page.bytes; begin += PageStore::kBlockBytes) {
    sums.push_back(
        crc64(memory.span()
                  .first(page.bytes)
                  .subspan(begin, std::min(PageStore::kBlockBytes, page.bytes - begin))));
  }
  const auto channel = store->open_channel();
  channel->write(page.id, memory.span(), 0, sums);
  finish(*channel);
  channel->read(page.id, memory.span(), 0);
  finish(*channel);
  sums[2] ^= 1;
  channel->write(page.id, memory.span(), 0, sums);
  finish(*channel);
  EXPECT_THROW(
      {
        channel->read(page.id, memory.span(), 0);
        finish(*channel);
      },
      Error);
}

TEST_P(PageStoreTest, two_lanes_move_different_pages_at_once) {
  const auto store = create();
  write_all(*store, 1);
  store->commit(Version(1), {});
  const auto reads = store->open_channel();
  const auto writes = store->open_channel();
  std::thread writer([&] {
    const AlignedMemory source(kSizes[8]);
    for (std::uint64_t round = 0; round < 8; ++round) {
      fill_page(source.span(), 1, round);
      writes->write(specs()[8].id, source.span(), round);
      finish(*writes);
    }
  });
  const AlignedMemory target(kSizes[7]);
  for (int round = 0; round < 8; ++round) {
    reads->read(specs()[7].id, target.span(), 0);
    finish(*reads);
  }
  writer.join();
  // A write of one lane is seen by the other.
  const AlignedMemory expected(kSizes[8]), seen(kSizes[8]);
  fill_page(expected.span(), 1, 7);
  reads->read(specs()[8].id, seen.span(), 0);
  finish(*reads);
  EXPECT_TRUE(same_bytes(expected.span(), seen.span()));
}

TEST_P(PageStoreTest, one_extent_a_page_admits_that_it_was_torn) {
  options_.extents_per_page = 1;
  {
    const auto store = create();
    write_all(*store, 1);
    store->commit(Version(1), {});
    EXPECT_THROW(store->discard(), Error);
  }
  {
    const auto store = open();
    EXPECT_EQ(store->committed_version(), Version(1));
    EXPECT_FALSE(store->was_torn());
    expect_all(*store, 1);
    write_all(*store, 2);
    expect_all(*store, 2);
  }
  const auto store = open();
  EXPECT_FALSE(store->committed_version());
  EXPECT_TRUE(store->was_torn());
}

TEST_P(PageStoreTest, misuse_is_refused) {
  const auto store = create();
  const auto channel = store->open_channel();
  const AlignedMemory memory(8192);
  const PageId id = specs()[5].id;                                        // 4097 bytes.
  EXPECT_THROW(channel->read(id, memory.span(), 0), Error);               // never written
  EXPECT_THROW(channel->read(PageId(1), memory.span(), 0), Error);        // no such page
  EXPECT_THROW(channel->write(id, memory.span().first(4097), 0), Error);  // too short
  const AlignedMemory source(kSizes[8]);
  fill_page(source.span(), 1, 1);
  channel->write(specs()[8].id, source.span(), 0);
  EXPECT_THROW(store->commit(Version(1), {}), Error);                    // a write is in flight
  EXPECT_THROW(channel->write(specs()[8].id, source.span(), 0), Error);  // of the same page
  EXPECT_THROW(store->discard(), Error);                                 // a write is in flight
  finish(*channel);
  store->commit(Version(1), {});
  EXPECT_THROW(store->commit(Version(1), {}), Error);  // not above the last version
}

INSTANTIATE_TEST_SUITE_P(
    Engines, PageStoreTest,
    ::testing::Values(Subject{"uring", [] { return PageStoreOptions{}; }},
                      Subject{"uring_in_small_pieces_flushing_early",
                              [] {
                                PageStoreOptions options;
                                options.engine.piece_bytes = PageStore::kBlockBytes;
                                options.engine.depth = 3;
                                options.flush_every_bytes = kMiB;
                                return options;
                              }},
                      Subject{"threads",
                              [] {
                                PageStoreOptions options;
                                options.engine.driver = DriverKind::threads;
                                return options;
                              }},
                      Subject{"page_cache",
                              [] {
                                PageStoreOptions options;
                                options.engine.direct = false;
                                return options;
                              }},
                      Subject{"memory",
                              [] {
                                return on_memory(std::make_shared<MemoryDisk>(MemoryDiskOptions{}));
                              }},
                      Subject{"memory_short_and_slow",
                              [] {
                                return on_memory(std::make_shared<MemoryDisk>(
                                    MemoryDiskOptions{.seed = 5,
                                                      .short_probability = 0.3,
                                                      .passing_probability = 0.1,
                                                      .delay_max = 4}));
                              }}),
    [](const auto& subject) { return subject.param.name; });

}  // namespace
}  // namespace terrace::io
