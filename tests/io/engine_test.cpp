// The conformance suite of I/O engines: every driver, well-behaved and faulty, keeps these
// promises.
#include "terrace/io/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "io/aligned_buffer.h"
#include "io/faulty_driver.h"
#include "io/page_contents.h"
#include "io/temporary_folder.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/random.h"
#include "terrace/core/units.h"
#include "terrace/io/memory_disk.h"

namespace terrace::io {
namespace {

using terrace::testing::AlignedBuffer;
using terrace::testing::FaultyDriver;
using terrace::testing::same_bytes;
using terrace::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct DriverUnderTest {
  std::string name;
  std::function<std::unique_ptr<Driver>(int depth)> make;
};

std::unique_ptr<Driver> uring(int depth) {
  int refusal = 0;
  return make_uring_driver({.depth = depth}, refusal);
}
std::unique_ptr<Driver> threads(int depth) { return make_thread_driver({.depth = depth}); }
std::unique_ptr<Driver> memory(const MemoryDiskOptions& options) {
  return make_memory_driver(std::make_shared<MemoryDisk>(options));
}

std::vector<DriverUnderTest> drivers_under_test() {
  return {
      {"uring", uring},
      {"uring_sqpoll",
       [](int depth) {
         int refusal = 0;
         return make_uring_driver({.depth = depth, .sqpoll = true}, refusal);
       }},
      {"threads", threads},
      {"memory", [](int) { return memory({}); }},
      {"memory_short_and_slow",
       [](int) {
         return memory(
             {.seed = 3, .short_probability = 0.3, .passing_probability = 0.2, .delay_max = 5});
       }},
      {"uring_faulty",
       [](int depth) -> std::unique_ptr<Driver> {
         auto inner = uring(depth);
         if (inner == nullptr) return nullptr;
         return std::make_unique<FaultyDriver>(std::move(inner), FaultyDriver::Options{});
       }},
      {"threads_faulty",
       [](int depth) {
         return std::make_unique<FaultyDriver>(threads(depth), FaultyDriver::Options{.seed = 2});
       }},
      {"threads_refusing_direct_at_the_first_transfer",
       [](int depth) {
         return std::make_unique<FaultyDriver>(threads(depth),
                                               FaultyDriver::Options{.refuses_direct = true});
       }},
  };
}

class EngineTest : public ::testing::TestWithParam<DriverUnderTest> {
 protected:
  void SetUp() override { make({}); }

  void make(const EngineOptions& options) {
    engine_.reset();
    auto driver = GetParam().make(Engine::driver_depth(options));
    if (driver == nullptr) GTEST_SKIP() << "io_uring is forbidden here";
    engine_ = std::make_unique<Engine>(std::move(driver), options, log_);
  }

  OpenedFile create(const std::string& name, std::uint64_t bytes) {
    return engine_->open(folder_ / name, {.create = true, .bytes = bytes});
  }

  /// Submits all, however little room there is, and returns the completions by token.
  std::map<std::uint64_t, Completion> run(std::span<const Request> requests) {
    std::map<std::uint64_t, Completion> done;
    std::vector<Completion> some(16);
    const std::size_t total = requests.size();
    while (done.size() < total) {
      requests = requests.subspan(engine_->submit(requests));
      const std::size_t count = engine_->wait(some, 1);
      EXPECT_GT(count, 0U);
      for (std::size_t i = 0; i < count; ++i) done[some[i].token] = some[i];
    }
    EXPECT_EQ(engine_->in_flight(), 0U);
    return done;
  }

  static void fill(std::span<std::byte> target, std::uint64_t seed) {
    terrace::testing::fill_page(target, seed, 11);
  }

  TemporaryFolder folder_;
  std::vector<std::string> lines_;
  Log log_{[this](LogLevel, std::string_view line) { lines_.emplace_back(line); }};
  std::unique_ptr<Engine> engine_;
};

TEST_P(EngineTest, returns_the_bytes_that_were_written) {
  const OpenedFile file = create("a", 8 * kMiB);
  AlignedBuffer source(5 * kMiB), target(5 * kMiB);
  fill(source.span(), 1);
  const Request write{Operation::write, file.id, kMiB, source.data(), source.size(), 1};
  const Request flush{Operation::flush, file.id, 0, nullptr, 0, 2};
  const Request read{Operation::read, file.id, kMiB, target.data(), target.size(), 3};
  for (const Request& request : {write, flush, read}) {
    EXPECT_EQ(run({&request, 1})[request.token].message, "");
  }
  EXPECT_TRUE(same_bytes(source.span(), target.span()));
}

TEST_P(EngineTest, ten_thousand_requests_pass_through_a_queue_of_four) {
  make({.depth = 4, .files_max = 2, .requests_max = 4, .piece_bytes = 4096});
  if (engine_ == nullptr) GTEST_SKIP();
  const OpenedFile files[] = {create("a", 4 * kMiB), create("b", 4 * kMiB)};
  constexpr std::size_t kCount = 10'000;
  AlignedBuffer source(8 * kMiB), target(8 * kMiB);
  fill(source.span(), 2);
  std::vector<Request> requests;
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::size_t block = i % (8 * kMiB / 4096);
    const std::uint64_t offset = block / 2 * 4096;
    requests.push_back(
        {Operation::write, files[block % 2].id, offset, source.data() + block * 4096, 4096, i});
  }
  const auto written = run(requests);
  ASSERT_EQ(written.size(), kCount);
  for (const auto& [token, completion] : written) ASSERT_EQ(completion.message, "");
  for (Request& request : requests) {
    request.kind = Operation::read;
    request.data = target.data() + (request.data - source.data());
  }
  for (const auto& [token, completion] : run(requests)) ASSERT_EQ(completion.message, "");
  EXPECT_TRUE(same_bytes(source.span(), target.span()));
}

TEST_P(EngineTest, deep_queues_of_many_files_share_what_the_kernel_holds) {
  const EngineOptions options{.depth = 4096, .files_max = 9};
  EXPECT_EQ(Engine::driver_depth(options), 32768);
  make(options);  // A larger ring would be refused.
  if (engine_ == nullptr) GTEST_SKIP();
  const OpenedFile file = create("a", kMiB);
  AlignedBuffer source(kMiB);
  const Request write{Operation::write, file.id, 0, source.data(), source.size(), 1};
  EXPECT_EQ(run({&write, 1})[1].message, "");
}

TEST_P(EngineTest, reading_past_the_end_names_the_path_and_the_end) {
  const OpenedFile file = create("short.bin", kMiB);
  AlignedBuffer target(2 * kMiB);
  const Request read{Operation::read, file.id, 512 * kKiB, target.data(), target.size(), 5};
  const Completion completion = run({&read, 1})[5];
  EXPECT_EQ(completion.error, ENODATA);
  EXPECT_THAT(completion.message,
              AllOf(HasSubstr("short.bin"), HasSubstr("cannot read 2097152 bytes at offset 524288"),
                    HasSubstr("the file ends at byte 1048576"), HasSubstr("ENODATA")));
}

TEST_P(EngineTest, a_request_of_no_bytes_completes) {
  const OpenedFile file = create("a", kMiB);
  const Request read{Operation::read, file.id, 0, nullptr, 0, 9};
  EXPECT_EQ(run({&read, 1})[9].error, 0);
}

TEST_P(EngineTest, registered_buffers_change_nothing_but_the_cost) {
  const OpenedFile file = create("a", 4 * kMiB);
  AlignedBuffer first(kMiB), second(kMiB), outside(kMiB);
  const std::span<std::byte> both[] = {second.span(), first.span()};
  engine_->register_buffers(both);
  AlignedBuffer* buffers[] = {&first, &second, &outside};
  for (std::uint64_t i = 0; i < 3; ++i) {
    fill(buffers[i]->span(), i);
    const Request write{Operation::write, file.id, i * kMiB, buffers[i]->data(), kMiB, i};
    EXPECT_EQ(run({&write, 1})[i].message, "");
  }
  for (std::uint64_t i = 0; i < 3; ++i) {
    AlignedBuffer& target = *buffers[(i + 1) % 3];
    const Request read{Operation::read, file.id, i * kMiB, target.data(), kMiB, i};
    EXPECT_EQ(run({&read, 1})[i].message, "");
    AlignedBuffer expected(kMiB);
    fill(expected.span(), i);
    EXPECT_TRUE(same_bytes(target.span(), expected.span()));
  }
}

TEST_P(EngineTest, refuses_what_is_not_aligned) {
  const OpenedFile file = create("a", kMiB);
  if (file.offset_alignment == 1) GTEST_SKIP() << "this file system aligns nothing";
  AlignedBuffer target(8192);
  const Request read{Operation::read, file.id, 1, target.data(), 4096, 1};
  EXPECT_THROW((void)engine_->submit({&read, 1}), Error);
}

TEST_P(EngineTest, destruction_waits_for_what_is_in_flight) {
  const OpenedFile file = create("a", 64 * kMiB);
  AlignedBuffer source(64 * kMiB);
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < 16; ++i) {
    requests.push_back(
        {Operation::write, file.id, i * 4 * kMiB, source.data() + i * 4 * kMiB, 4 * kMiB, i});
  }
  EXPECT_EQ(engine_->submit(requests), requests.size());
  engine_.reset();  // Under ASan, a transfer into freed memory would show.
}

TEST_P(EngineTest, destruction_on_another_thread_waits_too) {
  if (GetParam().name.ends_with("direct_at_the_first_transfer")) {
    GTEST_SKIP() << "nothing is in flight: each piece waits to be made again";
  }
  make({.depth = 16, .requests_max = 16, .piece_bytes = 4 * kMiB});
  if (engine_ == nullptr) GTEST_SKIP();
  constexpr std::uint64_t kCount = 16;
  const OpenedFile file = create("a", kCount * 4 * kMiB);
  AlignedBuffer source(kCount * 4 * kMiB), target(kCount * 4 * kMiB);
  fill(source.span(), 3);
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    requests.push_back(
        {Operation::write, file.id, i * 4 * kMiB, source.data() + i * 4 * kMiB, 4 * kMiB, i});
  }
  for (const auto& [token, completion] : run(requests)) ASSERT_EQ(completion.message, "");
  for (Request& request : requests) {
    request.kind = Operation::read;
    request.data = target.data() + (request.data - source.data());
  }
  // The thread that began them is alive all the while, and does nothing about them.
  std::atomic<bool> begun{false}, gone{false};
  std::thread issuer([&] {
    EXPECT_EQ(engine_->submit(requests), kCount);
    begun = true;
    begun.notify_one();
    gone.wait(false);
  });
  begun.wait(false);
  engine_.reset();
  // Whatever arrives is there now.
  AlignedBuffer found(target.span().size());
  std::memcpy(found.data(), target.data(), target.span().size());
  sleep_us(20'000);
  EXPECT_TRUE(same_bytes(found.span(), target.span()));
  const bool drops_pieces = GetParam().name.find("faulty") != std::string::npos ||
                            GetParam().name.find("short") != std::string::npos;
  if (!drops_pieces) {
    EXPECT_TRUE(same_bytes(source.span(), target.span()));
  }
  gone = true;
  gone.notify_one();
  issuer.join();
}

INSTANTIATE_TEST_SUITE_P(Drivers, EngineTest, ::testing::ValuesIn(drivers_under_test()),
                         [](const auto& subject) { return subject.param.name; });

}  // namespace
}  // namespace terrace::io
