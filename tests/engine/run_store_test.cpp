#include "run_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "terrace/io/free_space.h"

namespace terrace::engine {
namespace {

using ::testing::HasSubstr;

TEST(DiskLimit, a_share_is_of_what_is_free_and_a_drive_counts_once) {
  const terrace::testing::TemporaryFolder folder;
  PlacementSettings settings;
  for (const char* name : {"one", "two"}) {
    std::filesystem::create_directory(folder / name);
    settings.swap.push_back(folder / name);
  }
  const auto free = static_cast<double>(io::free_bytes(folder.path()));
  // Others write to the drive meanwhile.
  EXPECT_NEAR(static_cast<double>(disk_limit(settings, 0).bytes), free, free / 10);
  EXPECT_THAT(disk_limit(settings, 0).advice, HasSubstr("are free in"));
  settings.disk = Budget{.percent = 50};
  EXPECT_NEAR(static_cast<double>(disk_limit(settings, 0).bytes), free / 2, free / 10);
  EXPECT_THAT(disk_limit(settings, 0).advice, HasSubstr("--disk allows"));
}

TEST(DiskLimit, drives_that_are_not_here_have_any_space_but_what_is_given) {
  PlacementSettings settings;
  settings.swap = {"/a folder of another machine"};
  settings.disk = Budget{.percent = 100};
  EXPECT_GT(disk_limit(settings, 0).bytes, std::uint64_t{1} << 60);
  settings.disk = Budget{.bytes = 1000};
  EXPECT_EQ(disk_limit(settings, 0).bytes, 1000U);
}

TEST(StoreOwner, is_the_same_for_all_names_of_a_folder) {
  const terrace::testing::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "run");
  std::filesystem::create_directory_symlink(folder / "run", folder / "link");
  const std::string owner = store_owner(folder / "run");
  EXPECT_EQ(store_owner(folder / "run/"), owner);
  EXPECT_EQ(store_owner(folder / "link"), owner);
  EXPECT_EQ(store_owner(folder / "run/../run/./"), owner);
  EXPECT_NE(store_owner(folder / "run2"), owner);
}

}  // namespace
}  // namespace terrace::engine
