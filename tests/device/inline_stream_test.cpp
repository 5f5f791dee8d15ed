#include "terrace/device/inline_stream.h"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <thread>

namespace terrace::device {
namespace {

TEST(InlineStream, has_done_what_it_is_given_on_the_thread_that_gives_it) {
  const auto stream = make_inline_stream();
  std::thread::id ran;
  stream->enqueue([&] { ran = std::this_thread::get_id(); });
  EXPECT_EQ(ran, std::this_thread::get_id());
  std::array<int, 2> values = {1, 2};
  stream->copy_on_device(Pointer(&values[1]), Pointer(values.data()), sizeof(int));
  EXPECT_EQ(values[1], 1);
}

TEST(InlineStream, signals_waits_and_throws_at_once) {
  const auto device = make_host_device();
  const auto event = device->make_event();
  const auto stream = make_inline_stream();
  stream->record(*event, 1);
  stream->wait(*event, 1);
  EXPECT_THROW(stream->enqueue([] { throw std::runtime_error("a cause"); }), std::runtime_error);
  EXPECT_NO_THROW(stream->synchronize());
}

}  // namespace
}  // namespace terrace::device
