#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "io/page_store_fixture.h"
#include "io/small_file_system.h"
#include "terrace/core/error.h"

// Pages beside those that a commit keeps.

namespace terrace::io {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ScratchTest : public PageStoreTest {};

TEST_P(ScratchTest, no_commit_discard_or_open_knows_of_scratch) {
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
    for (const auto& folder : folders_) {
      EXPECT_FALSE(std::filesystem::exists(folder.path / "scratch")) << "of a store that is closed";
      std::ofstream(folder.path / "scratch") << "of one that was killed";
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

TEST_P(ScratchTest, scratch_that_comes_back_with_other_bytes_is_refused) {
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
    EXPECT_THAT(error.what(), AllOf(HasSubstr("/b/scratch"), HasSubstr("checksum"),
                                    HasSubstr("--resume auto"), Not(HasSubstr("checkpoint"))));
  }
}

TEST_P(ScratchTest, scratch_lies_where_space_is_left_whatever_the_shares_of_the_pages) {
  if (options_.engine_factory) GTEST_SKIP() << "files in memory have any space";
  const terrace::testing::SmallMemory small(folders_[1].path, 24 * kMiB);
  if (!small.mounted()) GTEST_SKIP() << "cannot mount a file system here";
  const std::vector<PageSpec> scratch = {{PageId(1), 24 * kMiB, "scratch"}};
  const auto store = create();
  store->add_scratch(scratch);
  write_all(*store, 1);
  write_pages(*store, scratch, 1);
  expect_pages(*store, scratch, 1);
  expect_all(*store, 1);
}

TEST_P(ScratchTest, scratch_is_added_once_and_while_no_channel_is_open) {
  const std::vector<PageSpec> scratch = {{PageId(1), kMiB, "scratch"}};
  const auto store = create();
  {
    const auto channel = store->open_channel();
    EXPECT_THROW(store->add_scratch(scratch), Error) << "the channel would not find its files";
  }
  store->add_scratch(scratch);
  EXPECT_THROW(store->add_scratch({{{PageId(2), kMiB, "more"}}}), Error);
}

INSTANTIATE_TEST_SUITE_P(Engines, ScratchTest, ::testing::ValuesIn(subjects()),
                         [](const auto& subject) { return subject.param.name; });

}  // namespace
}  // namespace terrace::io
