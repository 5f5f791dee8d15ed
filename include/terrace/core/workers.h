#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "terrace/core/numa.h"

namespace terrace {

/// A non-owning reference to a callable `void(std::int64_t begin, std::int64_t end)`; valid during
/// the call it is passed to. Costs no allocation.
class RangeFunction {
 public:
  template <class F>
  // NOLINTNEXTLINE(google-explicit-constructor): stands in for the lambda at the call.
  RangeFunction(const F& function)
      : object_(&function), call_([](const void* object, std::int64_t begin, std::int64_t end) {
          (*static_cast<const F*>(object))(begin, end);
        }) {}

  void operator()(std::int64_t begin, std::int64_t end) const { call_(object_, begin, end); }

 private:
  const void* object_;
  void (*call_)(const void*, std::int64_t, std::int64_t);
};

/// How many threads to use, and why, as a phrase for the settings table.
struct ThreadCount {
  int threads = 1;
  std::string reason;
  std::vector<NodeThreads> nodes = {};  ///< how they spread; empty: one node, or not known

  /// "2 (physical cores)"; on several nodes with what each of them has.
  [[nodiscard]] std::string describe() const;
};

/// A fixed number of threads for data-parallel loops: an oneTBB arena of its own (plain
/// `std::thread` where TERRACE_STD_WORKERS is defined, as in the TSan preset, because the packaged
/// TBB reports races that are none). Different `Workers` never share threads' time slots; one
/// instance may be used from one thread at a time (single-owner), and not from inside its own loop.
class Workers {
 public:
  /// `threads` >= 1, the calling thread included.
  explicit Workers(int threads);
  /// Where `count` has nodes, each gets a fixed part of every loop: see "Note on NUMA nodes".
  explicit Workers(const ThreadCount& count);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  [[nodiscard]] int threads() const { return threads_; }
  /// Those that get parts of their own, in the order of the parts; empty where nothing is bound.
  [[nodiscard]] const std::vector<NodeThreads>& nodes() const { return nodes_; }

  /// Calls `body(begin, end)` on disjoint ranges that cover [0, count) exactly. Every range but the
  /// last starts and ends at a multiple of `grain`. How the ranges fall to threads is unspecified,
  /// so a result must not depend on it. With nodes, the share of [0, count) that falls to each
  /// depends on `count` and `grain` alone, and the calling thread, which is bound meanwhile, may
  /// help the others when the first node's is done. Rethrows the first exception of a body.
  void parallel_for(std::int64_t count, std::int64_t grain, RangeFunction body);

 private:
  struct Impl;
  void run(const RangeFunction& body, std::int64_t count, std::int64_t grain);

  int threads_;
  std::vector<NodeThreads> nodes_;
  std::unique_ptr<Impl> impl_;
};

/// min(affinity mask, ceil(cgroup CPU quota), physical cores), or `requested` (> 0) capped by the
/// mask, spread over the NUMA nodes. OMP_NUM_THREADS is not obeyed: launchers set it to 1 by
/// accident.
[[nodiscard]] ThreadCount choose_threads(int requested);

/// Begins so many threads at once beside those there are, and ends them. Errors: out_of_memory,
/// saying how many the system allows and what sets that limit.
void require_threads(int threads);

}  // namespace terrace
