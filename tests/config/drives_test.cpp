#include "terrace/config/drives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "terrace/io/free_space.h"

namespace terrace::config {
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
  EXPECT_NEAR(static_cast<double>(disk_limit(settings, {}).bytes), free, free / 10);
  EXPECT_THAT(disk_limit(settings, {}).advice, HasSubstr("are free in"));
  EXPECT_THAT(disk_limit(settings, {}).advice, HasSubstr("two (a file system with several"));
  settings.disk = Budget{.percent = 50};
  EXPECT_NEAR(static_cast<double>(disk_limit(settings, {}).bytes), free / 2, free / 10);
  EXPECT_THAT(disk_limit(settings, {}).advice, HasSubstr("--disk allows"));
}

TEST(DiskLimit, drives_that_are_not_here_have_any_space_but_what_is_given) {
  PlacementSettings settings;
  settings.swap = {"/a folder of another machine"};
  settings.disk = Budget{.percent = 100};
  EXPECT_GT(disk_limit(settings, {}).bytes, std::uint64_t{1} << 60);
  settings.disk = Budget{.bytes = 1000};
  EXPECT_EQ(disk_limit(settings, {}).bytes, 1000U);
}

TEST(DiskLimit, what_a_store_has_counts_for_the_flag_and_not_for_free_space) {
  const terrace::testing::TemporaryFolder folder;
  PlacementSettings settings;
  settings.swap = {folder.path()};
  const auto free = static_cast<double>(io::free_bytes(folder.path()));
  EXPECT_NEAR(static_cast<double>(disk_limit(settings, {.held_bytes = 1000}).bytes), free,
              free / 10);
  EXPECT_THAT(disk_limit(settings, {.held_bytes = 1000}).advice,
              HasSubstr("--offload_activations cpu"));
  settings.disk = Budget{.bytes = 1500};
  EXPECT_EQ(disk_limit(settings, {.held_bytes = 1000}).bytes, 500U);
  EXPECT_EQ(disk_limit(settings, {.held_bytes = 2000}).bytes, 0U) << "nothing more";
  EXPECT_THAT(disk_limit(settings, {.held_bytes = 1000}).advice,
              HasSubstr("and the store has 1000 B"));
}

}  // namespace
}  // namespace terrace::config
