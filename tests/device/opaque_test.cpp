#include "terrace/device/opaque.h"

#include <csignal>

#include "core/sanitized.h"
#include "device/conformance.h"
#include "terrace/device/seeded.h"

namespace terrace::device {
namespace {

Implementation over(const std::string& name,
                    const std::function<std::unique_ptr<Device>()>& inner) {
  return {name, [inner] { return make_opaque_device(inner()); }};
}

INSTANTIATE_TEST_SUITE_P(Opaque, DeviceConformance,
                         testing::Values(over("host", make_host_device),
                                         over("seeded", [] { return make_seeded_device(1); })),
                         name_of_case);

/// A child with SIGSEGV; a sanitizer reports that signal and exits.
bool is_segmentation_fault(int status) {
  return kSanitized ? status != 0 : testing::KilledBySignal(SIGSEGV)(status);
}

class OpaqueDeathTest : public testing::Test {
 protected:
  OpaqueDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  [[nodiscard]] volatile int& value() const { return *memory_.pointer().raw<int>(); }

  std::unique_ptr<Device> device_ = make_opaque_device(make_host_device());
  Buffer memory_ = device_->allocate(sizeof(int), "a test's value");
  std::unique_ptr<Stream> stream_ = device_->make_stream("test");
  int seen_ = 0;
};

TEST_F(OpaqueDeathTest, the_host_can_neither_read_nor_write) {
  EXPECT_FALSE(device_->memory_is_host());
  EXPECT_EXIT(seen_ = value(), is_segmentation_fault, "");
  EXPECT_EXIT(value() = 1, is_segmentation_fault, "");
}

TEST_F(OpaqueDeathTest, tasks_can_and_nobody_after_them) {
  stream_->enqueue([this] { value() = 7; });
  stream_->enqueue([this] { seen_ = value(); });
  stream_->synchronize();
  EXPECT_EQ(seen_, 7);
  EXPECT_EXIT(
      {
        stream_->enqueue([this] { value() = 7; });
        stream_->synchronize();
        seen_ = value();
      },
      is_segmentation_fault, "");
}

TEST_F(OpaqueDeathTest, nobody_can_after_a_task_that_threw) {
  EXPECT_EXIT(
      {
        stream_->enqueue([] { throw std::runtime_error("the first cause"); });
        (void)what_of([this] { stream_->synchronize(); });
        seen_ = value();
      },
      is_segmentation_fault, "");
}

TEST_F(OpaqueDeathTest, nobody_can_while_a_stream_waits) {
  EXPECT_EXIT(
      {
        const auto event = device_->make_event();
        const auto reached = device_->make_event();
        stream_->record(*reached, 1);
        stream_->wait(*event, 1);
        reached->synchronize(1);
        seen_ = value();
      },
      is_segmentation_fault, "");
}

TEST_F(OpaqueDeathTest, the_task_of_another_stream_ends_nobodys_access) {
  const auto other = device_->make_stream("other");
  const auto began = device_->make_event();
  const auto ended = device_->make_event();
  stream_->enqueue([&] {
    began->signal(1);
    ended->synchronize(1);
    value() = 3;
    seen_ = value();
  });
  other->wait(*began, 1);
  other->enqueue([] {});
  other->record(*ended, 1);
  stream_->synchronize();
  EXPECT_EQ(seen_, 3);
}

TEST_F(OpaqueDeathTest, pinned_memory_is_the_hosts) {
  const Buffer pinned = device_->allocate_pinned(sizeof(int), "a test's value");
  std::memset(pinned.host().data(), 1, sizeof(int));
  stream_->copy_to_device(memory_.pointer(), pinned.host());
  stream_->enqueue([this] { seen_ = value(); });
  stream_->synchronize();
  EXPECT_EQ(seen_, 0x01010101);
}

}  // namespace
}  // namespace terrace::device
