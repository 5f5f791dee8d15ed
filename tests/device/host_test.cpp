#include "device/conformance.h"

namespace terrace::device {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, DeviceConformance,
                         testing::Values(Implementation{"host", make_host_device}), name_of_case);

TEST(HostDevice, says_that_its_memory_is_the_hosts) {
  const auto device = make_host_device();
  EXPECT_EQ(device->name(), "host");
  EXPECT_TRUE(device->memory_is_host());
}

}  // namespace
}  // namespace terrace::device
