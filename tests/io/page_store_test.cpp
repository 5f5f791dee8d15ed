#include "terrace/io/page_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "io/page_store_fixture.h"
#include "io/temporary_folder.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/aligned_memory.h"
#include "terrace/io/checksum.h"
#include "terrace/io/page_channel.h"

namespace terrace::io {
namespace {

using terrace::testing::fill_page;
using terrace::testing::same_bytes;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

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

INSTANTIATE_TEST_SUITE_P(Engines, PageStoreTest, ::testing::ValuesIn(subjects()),
                         [](const auto& subject) { return subject.param.name; });

}  // namespace
}  // namespace terrace::io
