#include "terrace/core/workers.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#ifndef TERRACE_STD_WORKERS
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>
#endif

namespace terrace {
namespace {

/// Ranges are counted in grains so that each but the last is whole.
struct Grains {
  std::int64_t count;
  std::int64_t grain;

  [[nodiscard]] std::int64_t number() const { return (count + grain - 1) / grain; }
  void call(const RangeFunction& body, std::int64_t first, std::int64_t last) const {
    body(first * grain, std::min(last * grain, count));
  }
};

}  // namespace

#ifndef TERRACE_STD_WORKERS

struct Workers::Impl {
  explicit Impl(int threads) : arena(threads) {}
  tbb::task_arena arena;
};

void Workers::parallel_for(std::int64_t count, std::int64_t grain, RangeFunction body) {
  const Grains grains{count, std::max<std::int64_t>(grain, 1)};
  const std::int64_t number = grains.number();
  if (number <= 0) return;
  if (threads_ == 1 || number == 1) return grains.call(body, 0, number);
  impl_->arena.execute([&] {
    // A few ranges a thread: enough to even out, few enough to cost nothing.
    const auto per_task =
        static_cast<std::size_t>(std::max<std::int64_t>(1, number / (std::int64_t{8} * threads_)));
    tbb::parallel_for(
        tbb::blocked_range<std::int64_t>(0, number, per_task),
        [&](const tbb::blocked_range<std::int64_t>& range) {
          grains.call(body, range.begin(), range.end());
        },
        tbb::simple_partitioner());
  });
}

#else

struct Workers::Impl {
  explicit Impl(int /*threads*/) {}
};

void Workers::parallel_for(std::int64_t count, std::int64_t grain, RangeFunction body) {
  const Grains grains{count, std::max<std::int64_t>(grain, 1)};
  const std::int64_t number = grains.number();
  if (number <= 0) return;
  const std::int64_t parts = std::min<std::int64_t>(threads_, number);
  std::mutex mutex;
  std::exception_ptr first_error;
  auto run_part = [&](std::int64_t part) {
    try {
      grains.call(body, number * part / parts, number * (part + 1) / parts);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (!first_error) first_error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::int64_t part = 1; part < parts; ++part) others.emplace_back(run_part, part);
    run_part(0);
  }
  if (first_error) std::rethrow_exception(first_error);
}

#endif

Workers::Workers(int threads)
    : threads_(std::max(threads, 1)), impl_(std::make_unique<Impl>(threads_)) {}
Workers::~Workers() = default;

}  // namespace terrace
