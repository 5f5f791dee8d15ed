#include "cpu/optim_step.h"
#include "terrace/kernels/optimizer_streams.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/optim_streams.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <atomic>

#include "cpu/optim_prefetch-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using Bytes = hn::CappedTag<std::uint8_t, 64>;
using BytesV = hn::Vec<Bytes>;

/// Parameters of which one array's bytes are touched before the next array's.
constexpr std::int64_t kPiece = 64;

HWY_INLINE BytesV read(const std::uint8_t* from, std::int64_t bytes, BytesV seen) {
  const Bytes d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < bytes; i += lanes) seen = hn::Or(seen, hn::LoadU(d, from + i));
  return seen;
}

HWY_INLINE void write(BytesV value, std::uint8_t* to, std::int64_t bytes, bool stream) {
  const Bytes d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < bytes; i += lanes) {
    if (stream && lanes >= 16) {
      hn::Stream(value, d, to + i);
    } else {
      hn::StoreU(value, d, to + i);
    }
  }
}

/// `zero` is 0, which the compiler does not know.
HWY_INLINE void copy(const std::uint8_t* from, std::uint8_t* to, std::int64_t bytes, BytesV zero) {
  const Bytes d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < bytes; i += lanes) {
    hn::StoreU(hn::Or(hn::LoadU(d, from + i), zero), d, to + i);
  }
}

struct Array {
  const std::uint8_t* from;
  std::uint8_t* to;
  std::int64_t size;  // bytes of an element
};

HWY_INLINE BytesV touch(const Array& array, std::int64_t i, std::int64_t count, BytesV seen,
                        BytesV zero, bool stream) {
  const std::int64_t at = i * array.size;
  const std::int64_t bytes = count * array.size;
  if (array.from != nullptr && array.to != nullptr) {
    copy(array.from + at, array.to + at, bytes, zero);
  } else if (array.from != nullptr) {
    return read(array.from + at, bytes, seen);
  } else if (array.to != nullptr) {
    write(zero, array.to + at, bytes, stream);
  }
  return seen;
}

/// Every cache line of a piece that is read.
HWY_INLINE void prefetch(const Array& array, std::int64_t i) {
  if (array.from == nullptr) return;
  const std::int64_t begin = i * array.size;
  for (std::int64_t line = 0; line < kPiece * array.size; line += 64) {
    hwy::Prefetch(array.from + begin + line);
  }
}

Array array_of(const void* from, void* to, std::size_t size) {
  return {static_cast<const std::uint8_t*>(from), static_cast<std::uint8_t*>(to),
          static_cast<std::int64_t>(size)};
}

}  // namespace

/// Whole pieces of [begin, end); the rest, less than one a task, is left out. Returns a byte that
/// depends on everything that was only read.
std::uint8_t streams(const StepJob& job, std::uint8_t zero_in, std::int64_t begin,
                     std::int64_t end) {
  const Bytes d;
  const StepArrays& a = job.arrays;
  const std::size_t moment = size_of(job.layout.moments);
  const std::size_t master = size_of(job.layout.master);
  const Array arrays[] = {array_of(a.gradient, nullptr, size_of(job.layout.gradient)),
                          array_of(a.master_in, a.master_out, master),
                          array_of(a.exp_avg_in, a.exp_avg_out, moment),
                          array_of(a.exp_avg_sq_in, a.exp_avg_sq_out, moment),
                          array_of(a.parameter_in, a.parameter_out, size_of(job.layout.parameter))};
  const BytesV zero = hn::Set(d, zero_in);
  BytesV seen = zero;
  for (std::int64_t i = begin; i + kPiece <= end; i += kPiece) {
    if (i + kPrefetchAhead + kPiece <= end) {
      for (const Array& array : arrays) prefetch(array, i + kPrefetchAhead);
    }
    for (const Array& array : arrays) {
      seen = touch(array, i, kPiece, seen, zero, job.stream_parameter);
    }
  }
  hwy::FlushStream();
  alignas(64) std::uint8_t bytes[64] = {};
  hn::StoreU(seen, d, bytes);
  return *std::max_element(bytes, bytes + 64);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace terrace::kernels {
namespace {
HWY_EXPORT(streams);
}  // namespace

void optimizer_streams(Workers& workers, StateLayout layout, const ChunkViews& chunk,
                       CpuTarget target) {
  const StepJob job = make_step_job(layout, chunk);
  const auto run = HWY_DISPATCH_TABLE(streams)[target.table_index()];
  std::atomic<std::uint8_t> seen{0};
  const std::uint8_t zero = seen.load();
  workers.parallel_for(chunk.count, kStepGrain, [&](std::int64_t begin, std::int64_t end) {
    seen.fetch_or(run(job, zero, begin, end));
  });
}

}  // namespace terrace::kernels
#endif
