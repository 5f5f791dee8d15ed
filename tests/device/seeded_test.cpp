#include "terrace/device/seeded.h"

#include <set>

#include "device/conformance.h"

namespace terrace::device {
namespace {

Implementation with_seed(std::uint64_t seed) {
  return {"seed_" + std::to_string(seed), [seed] { return make_seeded_device(seed); }};
}

INSTANTIATE_TEST_SUITE_P(Seeded, DeviceConformance,
                         testing::Values(with_seed(1), with_seed(2), with_seed(3)), name_of_case);

/// The order in which three streams of ten tasks each run, all queued before the first one does.
std::string order_of(std::uint64_t seed) {
  const auto device = make_seeded_device(seed);
  const auto gate = device->make_event();
  std::string order;
  std::vector<std::unique_ptr<Stream>> streams;
  for (char name = 'a'; name < 'd'; ++name) {
    streams.push_back(device->make_stream("test"));
    streams.back()->wait(*gate, 1);
    for (int i = 0; i < 10; ++i) streams.back()->enqueue([&order, name] { order += name; });
  }
  gate->signal(1);
  for (const auto& stream : streams) stream->synchronize();
  return order;
}

TEST(SeededDevice, the_seed_decides_the_order_and_many_are_seen) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const std::string order = order_of(seed);
    EXPECT_EQ(order.size(), 30U);
    EXPECT_EQ(order, order_of(seed)) << "seed " << seed;
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 20U);
}

TEST(SeededDevice, a_missing_wait_shows_under_some_seed) {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto device = make_seeded_device(seed);
    const auto gate = device->make_event();
    const auto producer = device->make_stream("producer");
    const auto consumer = device->make_stream("consumer");
    int value = 0;
    int seen = 0;
    producer->wait(*gate, 1);
    producer->enqueue([&] { value = 1; });
    consumer->wait(*gate, 1);  // and not for the producer
    consumer->enqueue([&] { seen = value; });
    gate->signal(1);
    producer->synchronize();
    consumer->synchronize();
    wrong += seen == 0 ? 1 : 0;
  }
  EXPECT_GT(wrong, 5);
  EXPECT_LT(wrong, 45);
}

}  // namespace
}  // namespace terrace::device
