#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/page_contents.h"
#include "io/store_on_memory.h"
#include "io/temporary_folder.h"
#include "terrace/core/units.h"
#include "terrace/io/aligned_memory.h"
#include "terrace/io/page_channel.h"
#include "terrace/io/page_store.h"

// What the page store's tests share: pages of awkward sizes, and a store of them on each engine.

namespace terrace::io {

inline const std::vector<std::uint64_t> kSizes = {1,    511,        513,          4095,    4096,
                                                  4097, 256 * kKiB, 3 * kMiB + 7, 5 * kMiB};

inline std::vector<PageSpec> specs() {
  std::vector<PageSpec> pages;
  for (const std::uint64_t bytes : kSizes) {
    pages.push_back({PageId(1000 + bytes), bytes, "page of " + std::to_string(bytes)});
  }
  return pages;
}

/// What the store lies on.
struct Subject {
  std::string name;
  std::function<PageStoreOptions()> options;
};

/// A store over two folders, of which the second takes two thirds of large pages.
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
      terrace::testing::fill_page(memory.back().span(), page.id.value, version);
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
      terrace::testing::fill_page(expected.span(), page.id.value, version);
      channel->read(page.id, target.span(), 7);
      std::uint64_t tag = 0;
      ASSERT_EQ(channel->wait({&tag, 1}), 1U);
      EXPECT_EQ(tag, 7U);
      EXPECT_TRUE(terrace::testing::same_bytes(target.span().first(page.bytes),
                                               expected.span().first(page.bytes)))
          << page.description << " is not that of version " << version;
    }
  }

  terrace::testing::TemporaryFolder folder_;
  Log log_{[](LogLevel, std::string_view) {}};
  PageStoreOptions options_;
  std::vector<StoreFolder> folders_;
};

inline std::vector<Subject> subjects() {
  return {
      Subject{"uring", [] { return PageStoreOptions{}; }},
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
                return terrace::testing::on_memory(
                    std::make_shared<MemoryDisk>(MemoryDiskOptions{}));
              }},
      Subject{
          "memory_short_and_slow", [] {
            return terrace::testing::on_memory(std::make_shared<MemoryDisk>(MemoryDiskOptions{
                .seed = 5, .short_probability = 0.3, .passing_probability = 0.1, .delay_max = 4}));
          }}};
}

}  // namespace terrace::io
