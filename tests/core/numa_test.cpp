#include "terrace/core/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <latch>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/made_up_machine.h"
#include "terrace/core/workers.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MadeUpMachine;
using ::testing::SizeIs;

/// Hardware threads that the calling thread may run on.
std::vector<int> own_cpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  EXPECT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &mask)) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<NumaNode> nodes_of_sizes(const std::vector<int>& sizes) {
  std::vector<NumaNode> nodes;
  int next = 0;
  for (const int size : sizes) {
    NumaNode& node = nodes.emplace_back();
    node.number = static_cast<int>(nodes.size()) - 1;
    for (int cpu = 0; cpu < size; ++cpu) node.cpus.push_back(next++);
  }
  return nodes;
}

std::vector<int> threads_of(const std::vector<NodeThreads>& shares) {
  std::vector<int> threads;
  for (const NodeThreads& share : shares) threads.push_back(share.threads);
  return threads;
}

TEST(ReadTopology, finds_the_nodes_with_their_processors) {
  const MadeUpMachine machine("node:2 core:2 pu:2");
  const Topology topology = read_topology();
  EXPECT_EQ(topology.cores, 4);
  ASSERT_THAT(topology.nodes, SizeIs(2));
  EXPECT_EQ(topology.nodes[0].number, 0);
  EXPECT_EQ(topology.nodes[1].number, 1);
  EXPECT_THAT(topology.nodes[0].cpus, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(topology.nodes[1].cpus, ElementsAre(4, 5, 6, 7));
}

TEST(ReadTopology, finds_one_node_where_there_is_one) {
  const MadeUpMachine machine("package:1 core:6 pu:1");
  const Topology topology = read_topology();
  EXPECT_EQ(topology.cores, 6);
  EXPECT_THAT(topology.nodes, SizeIs(1));
}

TEST(ReadTopology, leaves_out_a_second_memory_beside_the_same_cores) {
  const MadeUpMachine machine("package:2 [numa] [numa] core:2 pu:1");
  const Topology topology = read_topology();
  ASSERT_THAT(topology.nodes, SizeIs(2));
  EXPECT_THAT(topology.nodes[0].cpus, ElementsAre(0, 1));
  EXPECT_THAT(topology.nodes[1].cpus, ElementsAre(2, 3));
}

TEST(ReadTopology, sees_the_processors_of_this_process) {
  std::vector<int> cpus;
  for (const NumaNode& node : read_topology().nodes) {
    cpus.insert(cpus.end(), node.cpus.begin(), node.cpus.end());
  }
  if (cpus.empty()) GTEST_SKIP() << "hwloc knows no NUMA node here";
  EXPECT_THAT(cpus, ::testing::UnorderedElementsAreArray(own_cpus()));
}

TEST(SpreadThreads, follows_the_processors_and_gives_no_node_more_than_it_has) {
  EXPECT_THAT(threads_of(spread_threads(nodes_of_sizes({16, 16}), 32)), ElementsAre(16, 16));
  EXPECT_THAT(threads_of(spread_threads(nodes_of_sizes({16, 16}), 2)), ElementsAre(1, 1));
  EXPECT_THAT(threads_of(spread_threads(nodes_of_sizes({16, 16}), 5)), ElementsAre(2, 3));
  EXPECT_THAT(threads_of(spread_threads(nodes_of_sizes({30, 2}), 16)), ElementsAre(15, 1));
  EXPECT_THAT(threads_of(spread_threads(nodes_of_sizes({4, 4, 4, 4}), 3)), ElementsAre(1, 1, 1));
  for (int threads = 1; threads <= 24; ++threads) {
    int sum = 0;
    const auto nodes = nodes_of_sizes({7, 1, 12, 4});
    for (const NodeThreads& share : spread_threads(nodes, threads)) {
      EXPECT_GE(share.threads, 1);
      EXPECT_LE(share.threads, static_cast<int>(share.node.cpus.size()));
      sum += share.threads;
    }
    EXPECT_TRUE(sum == threads || sum == 0) << threads;
  }
}

TEST(SpreadThreads, binds_nothing_where_one_node_has_all) {
  EXPECT_THAT(spread_threads({}, 4), IsEmpty());
  EXPECT_THAT(spread_threads(nodes_of_sizes({8}), 4), IsEmpty());
  EXPECT_THAT(spread_threads(nodes_of_sizes({8, 8}), 1), IsEmpty());
}

TEST(ChooseThreads, spreads_over_the_nodes_and_says_so) {
  if (own_cpus().size() < 2) GTEST_SKIP() << "one processor";
  {
    const MadeUpMachine machine("node:2 core:1 pu:1");
    const ThreadCount count = choose_threads(2);
    EXPECT_THAT(threads_of(count.nodes), ElementsAre(1, 1));
    EXPECT_EQ(count.describe(), "2 (as asked; 1 on NUMA node 0, 1 on NUMA node 1)");
    EXPECT_THAT(choose_threads(1).nodes, IsEmpty());
  }
  const MadeUpMachine machine("package:1 core:2 pu:1");
  EXPECT_EQ(choose_threads(2).describe(), "2 (as asked)");
}

/// As many threads a node as is said, not bound to any processor.
ThreadCount unbound(const std::vector<int>& threads) {
  ThreadCount count{0, "a test", {}};
  for (const int number : threads) {
    count.nodes.push_back({{static_cast<int>(count.nodes.size()), {}}, number});
    count.threads += number;
  }
  return count;
}

TEST(WorkersOnNodes, cover_a_range_exactly_once_in_whole_grains) {
  for (const auto& threads : {std::vector{1, 1}, std::vector{2, 1}, std::vector{1, 3, 2}}) {
    Workers workers(unbound(threads));
    for (const std::int64_t count : {0, 1, 63, 64, 65, 128, 129, 1000, 100'003}) {
      std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
      std::atomic<bool> whole{true};
      workers.parallel_for(count, 64, [&](std::int64_t begin, std::int64_t end) {
        if (begin >= end || begin % 64 != 0 || (end % 64 != 0 && end != count)) whole = false;
        for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
      });
      EXPECT_TRUE(whole) << count;
      for (std::size_t i = 0; i < visits.size(); ++i) ASSERT_EQ(visits[i], 1) << i << count;
    }
  }
}

TEST(WorkersOnNodes, hand_a_bodys_exception_to_the_caller_and_work_on) {
  Workers workers(unbound({2, 2}));
  for (const std::int64_t culprit : {0, 500, 999}) {
    EXPECT_THROW(workers.parallel_for(1000, 1,
                                      [&](std::int64_t begin, std::int64_t end) {
                                        if (begin <= culprit && culprit < end) {
                                          throw std::runtime_error("one element");
                                        }
                                      }),
                 std::runtime_error);
    std::atomic<std::int64_t> sum{0};
    workers.parallel_for(1000, 1,
                         [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
    EXPECT_EQ(sum, 1000);
  }
}

// Each of two processors stands for a node. That both parts are under way at once, which the latch
// asks for, leaves the calling thread no time to help.
TEST(WorkersOnNodes, work_through_each_nodes_part_on_threads_bound_to_it) {
  const std::vector<int> cpus = own_cpus();
  if (cpus.size() < 2) GTEST_SKIP() << "one processor";
  const ThreadCount count{2, "a test", {{{0, {cpus[0]}}, 1}, {{1, {cpus[1]}}, 1}}};
  Workers workers(count);
  Workers others(2);  // may be given the same threads
  for (int round = 0; round < 20; ++round) {
    std::latch both(2);
    std::mutex mutex;
    std::map<std::int64_t, std::vector<int>> masks;  // by the part's begin
    workers.parallel_for(100, 50, [&](std::int64_t begin, std::int64_t) {
      both.arrive_and_wait();
      const std::scoped_lock lock(mutex);
      masks[begin] = own_cpus();
    });
    EXPECT_THAT(masks[0], ElementsAre(cpus[0]));
    EXPECT_THAT(masks[50], ElementsAre(cpus[1]));
    EXPECT_EQ(own_cpus(), cpus);
    others.parallel_for(1000, 1, [&](std::int64_t, std::int64_t) {
      const std::scoped_lock lock(mutex);
      EXPECT_EQ(own_cpus(), cpus) << "a thread has stayed bound";
    });
  }
}

}  // namespace
}  // namespace terrace
