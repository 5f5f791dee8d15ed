#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <latch>
#include <system_error>
#include <thread>
#include <vector>

#include "terrace/core/container.h"
#include "terrace/core/error.h"
#include "terrace/core/workers.h"

namespace terrace {
namespace {

/// What the kernel's mask may take; it refuses one that is shorter than its own.
constexpr std::size_t kMaskBytesMax = std::size_t{1} << 16;

int threads_in_mask() {
  std::vector<cpu_set_t> mask(1);
  for (; mask.size() * sizeof(cpu_set_t) <= kMaskBytesMax; mask.resize(2 * mask.size())) {
    const std::size_t bytes = mask.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, mask.data()) == 0) {
      return std::max(1, CPU_COUNT_S(bytes, mask.data()));
    }
  }
  return 1;
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

void require_threads(int threads) {
  std::latch over(1);
  std::vector<std::jthread> begun;
  try {
    while (begun.size() < static_cast<std::size_t>(threads)) {
      begun.emplace_back([&over] { over.wait(); });
    }
  } catch (const std::system_error& error) {
    over.count_down();
    fail(ErrorKind::out_of_memory,
         "the system allows {} of {} more threads: {}; raise the limit of processes (ulimit -u; "
         "pids.max of the container), or use fewer threads (--threads)",
         begun.size(), threads, errno_name(error.code().value()));
  }
  over.count_down();
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
