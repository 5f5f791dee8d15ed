#include "terrace/device/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "io/temporary_folder.h"

namespace terrace::device {
namespace {

TEST(Gpu, one_that_is_found_and_not_used_is_told_from_none) {
  const terrace::testing::TemporaryFolder root;
  const GpuSearch none = look_for_gpu(root.path());
  EXPECT_FALSE(none.found);
  EXPECT_EQ(none.reason, "no NVIDIA driver is loaded");
  std::filesystem::create_directory(root / "dev");
  std::ofstream(root / "dev/nvidiactl").put('x');
  const GpuSearch found = look_for_gpu(root.path());
  EXPECT_TRUE(found.found);
  EXPECT_THAT(found.reason, ::testing::HasSubstr("host device only"));
}

}  // namespace
}  // namespace terrace::device
