#include "terrace/core/workers.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "terrace/core/error.h"
#include "thread_binding.h"

#ifndef TERRACE_STD_WORKERS
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_group.h>
#endif

namespace terrace {
namespace {

/// Ranges are counted in grains so that each but the last is whole.
struct Grains {
  std::int64_t count;
  std::int64_t grain;

  [[nodiscard]] std::int64_t number() const { return (count + grain - 1) / grain; }
  /// On the calling thread, bound to `mask` meanwhile if there is one: two or three system calls a
  /// range, beside the tenth of a millisecond that one takes.
  void call(const RangeFunction& body, std::int64_t first, std::int64_t last,
            const AffinityMask* mask) const {
    std::optional<ThreadBinding> bound;
    if (mask != nullptr) bound.emplace(*mask);
    body(first * grain, std::min(last * grain, count));
  }
};

/// Grains [first, last), for so many threads.
struct Share {
  std::int64_t first = 0;
  std::int64_t last = 0;
  int threads = 1;
};

/// Splits a loop's grains in proportion to the nodes' threads, calling take(node, share).
template <class Take>
void each_share(const std::vector<NodeThreads>& nodes, int threads, std::int64_t number,
                const Take& take) {
  std::int64_t before = 0;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    const std::int64_t until = before + nodes[node].threads;
    take(node, Share{number * before / threads, number * until / threads, nodes[node].threads});
    before = until;
  }
}

/// The first error of several threads or parts.
class FirstError {
 public:
  template <class Body>
  void guard(const Body& body) {
    try {
      body();
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

#ifndef TERRACE_STD_WORKERS

namespace {

/// In a TBB arena: a few ranges a thread, enough to even out, few enough to cost nothing.
void run_share(const RangeFunction& body, const Grains& grains, const Share& share,
               const AffinityMask* mask) {
  const std::int64_t per_task =
      std::max<std::int64_t>(1, (share.last - share.first) / (std::int64_t{8} * share.threads));
  tbb::parallel_for(
      tbb::blocked_range<std::int64_t>(share.first, share.last, static_cast<std::size_t>(per_task)),
      [&](const tbb::blocked_range<std::int64_t>& range) {
        grains.call(body, range.begin(), range.end(), mask);
      },
      tbb::simple_partitioner());
}

/// A node's threads, bound to it in each range and not while they are in the arena: oneTBB would
/// tell of their coming and going through an observer, which 2021.8 does not always free. The
/// calling thread, which joins each node's arena in turn, counts as one of the first node's and
/// comes on top of the others', where it only helps with what is left.
class NodeArena {
 public:
  NodeArena(const NodeThreads& share, bool is_first)
      : mask_(share.node.cpus), arena_(is_first ? share.threads : share.threads + 1) {}

  /// Begins the share on the node's threads; `body` lives until `wait` has returned.
  void start(const RangeFunction& body, const Grains& grains, const Share& share) {
    arena_.execute([&] {
      group_.run([this, &body, grains, share] { run_share(body, grains, share, &mask_); });
    });
  }
  /// Throws what the body threw.
  void wait() {
    arena_.execute([&] { group_.wait(); });
  }

 private:
  AffinityMask mask_;
  tbb::task_arena arena_;
  tbb::task_group group_;
};

}  // namespace

struct Workers::Impl {
  Impl(int threads, const std::vector<NodeThreads>& shares) : arena(threads) {
    for (const NodeThreads& share : shares) {
      nodes.push_back(std::make_unique<NodeArena>(share, nodes.empty()));
    }
  }
  tbb::task_arena arena;  // of all threads, where there are no nodes
  std::vector<std::unique_ptr<NodeArena>> nodes;
};

void Workers::run(const RangeFunction& body, std::int64_t count, std::int64_t grain) {
  const Grains grains{count, grain};
  if (nodes_.empty()) {
    impl_->arena.execute([&] { run_share(body, grains, {0, grains.number(), threads_}, nullptr); });
    return;
  }
  FirstError error;
  const auto& arenas = impl_->nodes;
  each_share(nodes_, threads_, grains.number(), [&](std::size_t node, const Share& share) {
    error.guard([&] { arenas[node]->start(body, grains, share); });
  });
  for (const auto& arena : arenas) error.guard([&] { arena->wait(); });
  error.rethrow();
}

#else

struct Workers::Impl {
  Impl(int /*threads*/, const std::vector<NodeThreads>& shares) {
    for (const NodeThreads& share : shares) masks.emplace_back(share.node.cpus);
  }
  std::vector<AffinityMask> masks;
};

void Workers::run(const RangeFunction& body, std::int64_t count, std::int64_t grain) {
  const Grains grains{count, grain};
  FirstError error;
  const auto work = [&](const AffinityMask* mask, std::int64_t first, std::int64_t last) {
    error.guard([&] { grains.call(body, first, last, mask); });
  };
  std::vector<std::function<void()>> parts;
  const auto cut = [&](const AffinityMask* mask, const Share& share) {
    const std::int64_t grains_here = share.last - share.first;
    const std::int64_t number = std::min<std::int64_t>(share.threads, grains_here);
    for (std::int64_t part = 0; part < number; ++part) {
      parts.emplace_back([=, &work] {
        work(mask, share.first + grains_here * part / number,
             share.first + grains_here * (part + 1) / number);
      });
    }
  };
  if (nodes_.empty()) cut(nullptr, {0, grains.number(), threads_});
  each_share(nodes_, threads_, grains.number(),
             [&](std::size_t node, const Share& share) { cut(&impl_->masks[node], share); });
  {
    std::vector<std::jthread> others;
    for (std::size_t part = 1; part < parts.size(); ++part) others.emplace_back(parts[part]);
    parts.front()();
  }
  error.rethrow();
}

#endif

void Workers::parallel_for(std::int64_t count, std::int64_t grain, RangeFunction body) {
  if (count <= 0) return;
  const std::int64_t whole = std::max<std::int64_t>(grain, 1);
  if (threads_ == 1 || count <= whole) return body(0, count);
  run(body, count, whole);
}

Workers::Workers(int threads) : Workers(ThreadCount{threads, {}, {}}) {}
Workers::Workers(const ThreadCount& count)
    : threads_(std::max(count.threads, 1)),
      nodes_(count.nodes),
      impl_(std::make_unique<Impl>(threads_, nodes_)) {
  int bound = 0;
  for (const NodeThreads& share : nodes_) bound += share.threads;
  require(nodes_.empty() || bound == threads_, ErrorKind::internal,
          "{} threads are spread over NUMA nodes, but there are {}", bound, threads_);
}
Workers::~Workers() = default;

}  // namespace terrace
