#pragma once

#include <cstdint>

#include "terrace/kernels/optimizer_step.h"

namespace terrace::kernels {

/// The arrays of a chunk (or of one padded vector of it), element types by `StateLayout`. Null:
/// absent.
struct StepArrays {
  const void* gradient = nullptr;
  const void* master_in = nullptr;
  const void* parameter_in = nullptr;
  const void* exp_avg_in = nullptr;
  const void* exp_avg_sq_in = nullptr;
  void* master_out = nullptr;
  void* parameter_out = nullptr;
  void* exp_avg_out = nullptr;
  void* exp_avg_sq_out = nullptr;
};

/// What each worker is given.
struct StepJob {
  StateLayout layout;
  StepArrays arrays;
  Coefficients coefficients;
  std::int64_t first_index = 0;
  /// Write a 16-bit parameter of `fp32` past the caches: it is not read, and a plain store would
  /// read its cache line first. Needs `parameter_out` at a multiple of 64 bytes.
  bool stream_parameter = false;
};

/// Parameters that one task of a worker takes at least: some 28 bytes each, so 450 KiB.
inline constexpr std::int64_t kStepGrain = 1 << 14;

/// Parameters of a chunk from which on it is no use to leave the new ones in a cache.
inline constexpr std::int64_t kStreamCount = 1 << 19;

/// Checks the views and sets all but the coefficients. Errors: as `optimizer_step`.
[[nodiscard]] StepJob make_step_job(UpdateRule rule, StateLayout layout, const ChunkViews& chunk);

}  // namespace terrace::kernels
