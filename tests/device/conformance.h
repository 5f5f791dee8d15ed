#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/device/device.h"

// What every implementation of `Device` promises. A test program includes this and instantiates the
// suite `DeviceConformance` with its implementations. Only the interface is used, so it holds for
// devices whose memory the host cannot touch.

namespace terrace::device {

struct Implementation {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
};

inline std::string name_of_case(const testing::TestParamInfo<Implementation>& info) {
  return info.param.name;
}

class DeviceConformance : public testing::TestWithParam<Implementation> {
 protected:
  std::unique_ptr<Device> device_ = GetParam().make();

  /// Pinned memory that holds `values`.
  template <class T>
  [[nodiscard]] Buffer pinned(const std::vector<T>& values) {
    Buffer buffer = device_->allocate_pinned(values.size() * sizeof(T), "test values");
    std::memcpy(buffer.host().data(), values.data(), buffer.size());
    return buffer;
  }
  template <class T>
  [[nodiscard]] static std::vector<T> values_of(const Buffer& pinned) {
    std::vector<T> values(pinned.size() / sizeof(T));
    std::memcpy(values.data(), pinned.host().data(), pinned.size());
    return values;
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceConformance);

inline std::string what_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_P(DeviceConformance, a_stream_runs_its_tasks_in_order) {
  const auto stream = device_->make_stream("test");
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) {
    stream->enqueue([&order, i] { order.push_back(i); });
  }
  stream->synchronize();
  ASSERT_EQ(order.size(), 1000U);
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

TEST_P(DeviceConformance, bytes_come_back_as_they_went) {
  const auto stream = device_->make_stream("test");
  std::vector<std::uint8_t> values(100'001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint8_t>(i * 7 + 3);
  const Buffer source = pinned(values);
  const Buffer target = pinned(std::vector<std::uint8_t>(values.size(), 0));
  const Buffer there = device_->allocate(values.size(), "test");
  const Buffer copy = device_->allocate(values.size(), "test");
  stream->copy_to_device(there.pointer(), source.host());
  stream->copy_on_device(copy.pointer(), there.pointer(), values.size());
  stream->clear(there.pointer(), values.size());
  stream->copy_to_host(target.host(), copy.pointer());
  stream->synchronize();
  EXPECT_EQ(values_of<std::uint8_t>(target), values);
  stream->copy_to_host(target.host(), there.pointer());
  stream->synchronize();
  EXPECT_THAT(values_of<std::uint8_t>(target), testing::Each(0));
}

TEST_P(DeviceConformance, a_part_is_copied_and_cleared_and_its_neighbours_stay) {
  const auto stream = device_->make_stream("test");
  const Buffer ones = pinned(std::vector<std::uint8_t>(64, 1));
  const Buffer twos = pinned(std::vector<std::uint8_t>(8, 2));
  const Buffer there = device_->allocate(64, "test");
  stream->copy_to_device(there.pointer(), ones.host());
  stream->copy_to_device(there.pointer() + 8, twos.host());
  stream->clear(there.pointer() + 24, 8);
  const Buffer back = pinned(std::vector<std::uint8_t>(64, 9));
  stream->copy_to_host(back.host(), there.pointer());
  stream->synchronize();
  std::vector<std::uint8_t> expected(64, 1);
  std::fill_n(expected.begin() + 8, 8, std::uint8_t{2});
  std::fill_n(expected.begin() + 24, 8, std::uint8_t{0});
  EXPECT_EQ(values_of<std::uint8_t>(back), expected);
}

TEST_P(DeviceConformance, copies_and_tasks_of_one_stream_are_in_one_order) {
  const auto stream = device_->make_stream("test");
  const Buffer value = pinned(std::vector<int>{0});
  const Buffer there = device_->allocate(sizeof(int), "test");
  const Buffer back = pinned(std::vector<int>(200, -1));
  for (int i = 0; i < 200; ++i) {
    stream->enqueue([&value, i] { std::memcpy(value.host().data(), &i, sizeof i); });
    stream->copy_to_device(there.pointer(), value.host());
    stream->copy_to_host(
        back.host().subspan(static_cast<std::size_t>(i) * sizeof(int), sizeof(int)),
        there.pointer());
  }
  stream->synchronize();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(values_of<int>(back)[static_cast<std::size_t>(i)], i);
}

TEST_P(DeviceConformance, a_stream_waits_for_another_ones_event) {
  const auto producer = device_->make_stream("producer");
  const auto consumer = device_->make_stream("consumer");
  const auto event = device_->make_event();
  int value = 0;  // published by the event alone
  std::vector<int> seen;
  for (std::uint64_t step = 1; step <= 200; ++step) {
    const auto done = device_->make_event();
    consumer->wait(*event, step);
    consumer->enqueue([&] { seen.push_back(value); });
    consumer->record(*done, 1);
    producer->enqueue([&value, step] { value = static_cast<int>(step); });
    producer->record(*event, step);
    producer->wait(*done, 1);  // the next value only after this one was seen
    producer->synchronize();
  }
  consumer->synchronize();
  ASSERT_EQ(seen.size(), 200U);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i + 1);
}

TEST_P(DeviceConformance, a_wait_holds_back_what_is_behind_it_and_nothing_else) {
  const auto held = device_->make_stream("held");
  const auto free = device_->make_stream("free");
  const auto event = device_->make_event();
  std::atomic<bool> ran{false};
  held->wait(*event, 1);
  held->enqueue([&] { ran = true; });
  for (int i = 0; i < 100; ++i) free->enqueue([] {});
  free->synchronize();
  EXPECT_FALSE(ran);
  event->signal(1);
  held->synchronize();
  EXPECT_TRUE(ran);
}

TEST_P(DeviceConformance, an_event_only_grows) {
  const auto event = device_->make_event();
  EXPECT_TRUE(event->reached(0));
  EXPECT_FALSE(event->reached(1));
  event->signal(5);
  event->signal(3);
  EXPECT_TRUE(event->reached(5));
  EXPECT_FALSE(event->reached(6));
  event->synchronize(4);
  const auto stream = device_->make_stream("test");
  stream->record(*event, 6);
  event->synchronize(6);
  EXPECT_TRUE(event->reached(6));
}

TEST_P(DeviceConformance, an_event_is_recorded_only_when_what_is_before_it_is_done) {
  const auto stream = device_->make_stream("test");
  const auto gate = device_->make_event();
  const auto event = device_->make_event();
  stream->wait(*gate, 1);
  stream->record(*event, 1);
  EXPECT_FALSE(event->reached(1));
  gate->signal(1);
  event->synchronize(1);
}

TEST_P(DeviceConformance, one_event_serves_many_threads) {
  const auto event = device_->make_event();
  std::atomic<int> through{0};
  std::vector<std::thread> threads;
  for (std::uint64_t value = 1; value <= 8; ++value) {
    threads.emplace_back([&, value] {
      event->synchronize(value);
      ++through;
    });
  }
  const auto stream = device_->make_stream("test");
  for (std::uint64_t value = 1; value <= 8; ++value) stream->record(*event, value);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(through, 8);
}

TEST_P(DeviceConformance, after_an_error_nothing_runs_and_the_first_one_is_thrown) {
  const auto stream = device_->make_stream("test");
  std::atomic<bool> ran{false};
  stream->enqueue([] { throw std::runtime_error("the first cause"); });
  stream->enqueue([] { throw std::runtime_error("a later one"); });
  stream->enqueue([&] { ran = true; });
  EXPECT_EQ(what_of([&] { stream->synchronize(); }), "the first cause");
  EXPECT_FALSE(ran);
  stream->enqueue([&] { ran = true; });
  EXPECT_EQ(what_of([&] { stream->synchronize(); }), "the first cause");
  EXPECT_FALSE(ran);
}

TEST_P(DeviceConformance, an_error_travels_with_the_events_to_streams_and_threads) {
  const auto first = device_->make_stream("first");
  const auto second = device_->make_stream("second");
  const auto third = device_->make_stream("third");
  const auto reached = device_->make_event();
  const auto one = device_->make_event();
  const auto two = device_->make_event();
  first->record(*reached, 1);
  first->enqueue([] { throw std::runtime_error("the first cause"); });
  first->record(*one, 1);
  second->wait(*one, 1);
  second->enqueue([] { throw std::runtime_error("a consequence"); });
  second->record(*two, 1);
  std::atomic<bool> ran{false};
  third->wait(*reached, 1);
  third->enqueue([&] { ran = true; });
  third->synchronize();
  EXPECT_TRUE(ran) << "what was before the error stays good";
  EXPECT_EQ(what_of([&] { two->synchronize(1); }), "the first cause");
  EXPECT_EQ(what_of([&] { second->synchronize(); }), "the first cause");
}

TEST_P(DeviceConformance, a_poisoned_event_keeps_the_values_it_had_and_its_first_poison) {
  const auto event = device_->make_event();
  event->signal(2);
  event->poison(std::make_exception_ptr(std::runtime_error("the first cause")));
  event->poison(std::make_exception_ptr(std::runtime_error("a later one")));
  event->synchronize(2);
  EXPECT_TRUE(event->reached(2));
  EXPECT_FALSE(event->reached(3));
  EXPECT_EQ(what_of([&] { event->synchronize(3); }), "the first cause");
  const auto stream = device_->make_stream("test");
  stream->wait(*event, 3);
  EXPECT_EQ(what_of([&] { stream->synchronize(); }), "the first cause");
}

TEST_P(DeviceConformance, poison_lets_go_who_already_waits) {
  const auto event = device_->make_event();
  const auto stream = device_->make_stream("test");
  stream->wait(*event, 1);
  std::string what;
  std::thread waiting([&] { what = what_of([&] { event->synchronize(1); }); });
  event->poison(std::make_exception_ptr(std::runtime_error("stopped")));
  waiting.join();
  EXPECT_EQ(what, "stopped");
  EXPECT_EQ(what_of([&] { stream->synchronize(); }), "stopped");
}

TEST_P(DeviceConformance, a_host_that_runs_far_ahead_loses_nothing) {
  const auto stream = device_->make_stream("test");
  const auto gate = device_->make_event();
  const auto full = device_->make_event();
  stream->wait(*gate, 1);
  // More than any queue holds: the producer must be held, then go on.
  constexpr int kTasks = 20'000;
  int ran = 0;
  std::thread producer([&] {
    for (int i = 0; i < kTasks; ++i) stream->enqueue([&ran] { ++ran; });
    stream->record(*full, 1);
  });
  gate->signal(1);
  full->synchronize(1);
  producer.join();
  EXPECT_EQ(ran, kTasks);
}

TEST_P(DeviceConformance, streams_in_a_ring_of_events_never_stick) {
  constexpr std::size_t kStreams = 4;
  constexpr std::uint64_t kRounds = 500;
  std::vector<std::unique_ptr<Event>> events;
  for (std::size_t i = 0; i < kStreams; ++i) events.push_back(device_->make_event());
  std::vector<std::unique_ptr<Stream>> streams;
  for (std::size_t i = 0; i < kStreams; ++i) streams.push_back(device_->make_stream("ring"));
  std::uint64_t token = 0;  // handed round, never touched by two at once
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    for (std::size_t i = 0; i < kStreams; ++i) {
      const std::size_t before = (i + kStreams - 1) % kStreams;
      streams[i]->wait(*events[before], i == 0 ? round - 1 : round);
      streams[i]->enqueue([&token] { ++token; });
      streams[i]->record(*events[i], round);
    }
  }
  events.back()->synchronize(kRounds);
  EXPECT_EQ(token, kRounds * kStreams);
  for (const auto& stream : streams) stream->synchronize();
}

TEST_P(DeviceConformance, a_stream_that_ends_has_finished_its_work) {
  std::atomic<int> ran{0};
  {
    const auto stream = device_->make_stream("test");
    for (int i = 0; i < 100; ++i) stream->enqueue([&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 100);
}

TEST_P(DeviceConformance, buffers_have_exactly_the_size_and_begin_at_a_page) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4095}, std::size_t{4097},
                                  std::size_t{3 << 20}, std::size_t{129'500'000}}) {
    const Buffer there = device_->allocate(bytes, "test");
    EXPECT_EQ(there.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(there.pointer().raw()) % 256, 0U);
    const Buffer here = device_->allocate_pinned(bytes, "test");
    EXPECT_EQ(here.size(), bytes);
    EXPECT_EQ(here.host().size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(here.host().data()) % 4096, 0U);
  }
}

TEST_P(DeviceConformance, a_buffer_moves_and_is_empty_afterwards) {
  Buffer first = device_->allocate_pinned(100, "test");
  const std::byte* data = first.host().data();
  Buffer second = std::move(first);
  EXPECT_EQ(second.host().data(), data);
  EXPECT_EQ(first.size(), 0U);  // NOLINT(bugprone-use-after-move): what is promised
  second = device_->allocate_pinned(7, "test");
  EXPECT_EQ(second.size(), 7U);
  second.reset();
  EXPECT_EQ(second.size(), 0U);
}

TEST_P(DeviceConformance, memory_that_is_not_there_is_refused_by_purpose) {
  try {
    const Buffer buffer = device_->allocate(std::size_t{1} << 60, "the largest of slabs");
    FAIL() << "2^60 bytes were allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::out_of_memory);
    EXPECT_THAT(error.what(), testing::HasSubstr("the largest of slabs"));
  }
}

}  // namespace terrace::device
