#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <cmath>

#include "terrace/core/container.h"
#include "terrace/core/workers.h"

namespace terrace {
namespace {

int threads_in_mask() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return 1;
  return std::max(1, CPU_COUNT(&mask));
}

}  // namespace

ThreadCount choose_threads(int requested) {
  const int mask = threads_in_mask();
  const Topology topology = read_topology();
  ThreadCount choice{mask, "the affinity mask"};
  if (requested > 0) {
    choice = {std::min(requested, mask), "as asked"};
    if (requested > mask) {
      choice.reason = fmt::format("{} asked, the affinity mask has {}", requested, mask);
    }
  } else {
    if (topology.cores > 0 && topology.cores < choice.threads) {
      choice = {topology.cores, "physical cores"};
    }
    const ContainerLimits limits = read_container_limits();
    const int quota =
        limits.cpus ? std::max(1, static_cast<int>(std::ceil(limits.cpus->value))) : mask;
    if (quota < choice.threads) {
      choice = {quota, fmt::format("CPU quota in {}", limits.cpus->source)};
    }
  }
  choice.nodes = spread_threads(topology.nodes, choice.threads);
  return choice;
}

std::string ThreadCount::describe() const {
  std::string text = fmt::format("{} ({}", threads, reason);
  for (const NodeThreads& share : nodes) {
    text += fmt::format("{} {} on NUMA node {}", &share == nodes.data() ? ";" : ",", share.threads,
                        share.node.number);
  }
  return text + ")";
}

}  // namespace terrace
