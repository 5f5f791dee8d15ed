#pragma once

#include <vector>

namespace terrace {

/// Note on NUMA nodes. Memory belongs to the node from which it is touched first, and threads of
/// that node read and write it fastest. So where a process may run on several nodes, `Workers` can
/// be told to give each node a fixed part of every loop, worked through by threads bound to the
/// node. What one such loop touches first is then local to every later one of the same length, and
/// all nodes' memory works at once. Interleaved pages would use all memory too, but send half or
/// more of a step's bytes between the sockets. A thread is bound to a node, not to a processor, so
/// that the system may still move it out of another thread's way. Results do not depend on any of
/// it. On one node nothing is bound and loops are shared out freely.
/// Not yet run on a machine with several nodes: tested on topologies that hwloc makes up (its
/// variable HWLOC_SYNTHETIC), and with each processor of one node standing for a node.

/// A NUMA node that has processors for this process.
struct NumaNode {
  int number = 0;         ///< the system's
  std::vector<int> cpus;  ///< hardware threads of the process's affinity mask, ascending
};

/// How many threads work bound to a node.
struct NodeThreads {
  NumaNode node;
  int threads = 0;
};

/// What hwloc finds within the process's affinity mask.
struct Topology {
  int cores = 0;                ///< physical, with at least one hardware thread; 0: not known
  std::vector<NumaNode> nodes;  ///< in hwloc's order; empty: not known
};

/// Asks hwloc. Nodes without processors, or whose processors are an earlier node's (memory of
/// another kind beside the same cores), are left out.
[[nodiscard]] Topology read_topology();

/// Spreads threads over nodes in proportion to their processors, never more than a node has where
/// there are enough in all. Empty where fewer than two nodes get any: there is nothing to bind.
[[nodiscard]] std::vector<NodeThreads> spread_threads(const std::vector<NumaNode>& nodes,
                                                      int threads);

}  // namespace terrace
