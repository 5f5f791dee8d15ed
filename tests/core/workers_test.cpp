#include "terrace/core/workers.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace terrace {
namespace {

struct Case {
  int threads;
  std::int64_t count;
  std::int64_t grain;
};

class ParallelFor : public ::testing::TestWithParam<Case> {};

TEST_P(ParallelFor, covers_the_range_exactly_once_in_whole_grains) {
  const auto [threads, count, grain] = GetParam();
  Workers workers(threads);
  std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
  std::atomic<bool> whole{true};
  workers.parallel_for(count, grain, [&, count = count, grain = grain](auto begin, auto end) {
    if (begin >= end || begin % grain != 0 || (end % grain != 0 && end != count)) whole = false;
    for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
  });
  EXPECT_TRUE(whole);
  for (std::size_t i = 0; i < visits.size(); ++i) ASSERT_EQ(visits[i], 1) << i;
}

INSTANTIATE_TEST_SUITE_P(sizes, ParallelFor,
                         ::testing::Values(Case{1, 1000, 1}, Case{2, 0, 1}, Case{2, 1, 1},
                                           Case{2, 1000, 1}, Case{2, 1000, 7}, Case{2, 1000, 1000},
                                           Case{2, 1000, 4096}, Case{3, 1, 64},
                                           Case{3, 100'003, 64}, Case{5, 12, 3},
                                           Case{16, 100'000, 128}),
                         [](const ::testing::TestParamInfo<Case>& case_info) {
                           return std::to_string(case_info.param.threads) + "_threads_" +
                                  std::to_string(case_info.param.count) + "_by_" +
                                  std::to_string(case_info.param.grain);
                         });

TEST(Workers, hands_a_bodys_exception_to_the_caller_and_works_on) {
  for (const int threads : {1, 2, 4}) {
    Workers workers(threads);
    EXPECT_THROW(workers.parallel_for(1000, 1,
                                      [](std::int64_t begin, std::int64_t end) {
                                        if (begin <= 500 && 500 < end) {
                                          throw std::runtime_error("element 500");
                                        }
                                      }),
                 std::runtime_error);
    std::atomic<std::int64_t> sum{0};
    workers.parallel_for(1000, 1,
                         [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
    EXPECT_EQ(sum, 1000);
  }
}

TEST(Workers, use_no_more_threads_than_they_have) {
  for (const int threads : {1, 2, 3}) {
    Workers workers(threads);
    std::mutex mutex;
    std::set<std::thread::id> seen;
    std::atomic<int> inside{0};
    std::atomic<int> most{0};
    workers.parallel_for(2000, 1, [&](std::int64_t, std::int64_t) {
      const int now = ++inside;
      int before = most;
      while (before < now && !most.compare_exchange_weak(before, now)) {
      }
      {
        const std::scoped_lock lock(mutex);
        seen.insert(std::this_thread::get_id());
      }
      --inside;
    });
    EXPECT_LE(most, threads);
    EXPECT_GE(seen.size(), 1U);
  }
}

TEST(Workers, have_at_least_one_thread) {
  Workers workers(0);
  EXPECT_EQ(workers.threads(), 1);
}

TEST(ChooseThreads, gives_the_request_up_to_the_affinity_mask_and_says_why) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  const int allowed = CPU_COUNT(&mask);
  EXPECT_EQ(choose_threads(1).threads, 1);
  EXPECT_EQ(choose_threads(1).reason, "as asked");
  EXPECT_EQ(choose_threads(allowed + 100).threads, allowed);
  EXPECT_NE(choose_threads(allowed + 100).reason.find("affinity mask"), std::string::npos);
}

// A thread of its own, because the mask it narrows is the thread's.
TEST(ChooseThreads, respects_affinity_and_not_omp_num_threads) {
  const ThreadCount before = choose_threads(0);
  EXPECT_FALSE(before.reason.empty());
  ASSERT_EQ(setenv("OMP_NUM_THREADS", "1", 1), 0);
  EXPECT_EQ(choose_threads(0).threads, before.threads);
  ASSERT_EQ(unsetenv("OMP_NUM_THREADS"), 0);
  std::thread([] {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &mask)) {
        CPU_SET(cpu, &one);
        break;
      }
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(choose_threads(0).threads, 1);
  }).join();
}

}  // namespace
}  // namespace terrace
