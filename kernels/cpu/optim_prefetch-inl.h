// What the optimizer step and the streams it is measured against ask of the caches. Included once a
// target.
#if defined(TERRACE_OPTIM_PREFETCH_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_OPTIM_PREFETCH_INL
#undef TERRACE_OPTIM_PREFETCH_INL
#else
#define TERRACE_OPTIM_PREFETCH_INL
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstdint>

#include "cpu/optim_step.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

// Why prefetch: a pass has up to nine streams that each end at a page boundary, where the
// hardware's prefetchers stop. Measured on one Sapphire Rapids core (CPU time, best of nine passes
// over 16M parameters), GB/s without and with: fp32 27 and 33 (with the parameter's streaming
// stores), split 24 and 31. Asking for one cache line of every array at a time is better than for
// several.
constexpr std::int64_t kPrefetchBlock = 16;  // parameters: a cache line of an FP32 array
constexpr std::int64_t kPrefetchAhead = 512;

HWY_INLINE void prefetch_line(const void* base, std::int64_t index, std::size_t size) {
  if (base == nullptr) return;
  hwy::Prefetch(static_cast<const std::byte*>(base) + index * static_cast<std::int64_t>(size));
}

/// Asks for what is read of the block of parameters at `index`.
HWY_INLINE void prefetch_block(const StepJob& job, std::int64_t index) {
  const StepArrays& arrays = job.arrays;
  const std::size_t moment = size_of(job.layout.moments);
  prefetch_line(arrays.gradient, index, size_of(job.layout.gradient));
  prefetch_line(arrays.master_in, index, job.layout.master == MasterFormat::split ? 2 : 4);
  prefetch_line(arrays.parameter_in, index, 2);
  prefetch_line(arrays.exp_avg_in, index, moment);
  prefetch_line(arrays.exp_avg_sq_in, index, moment);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
