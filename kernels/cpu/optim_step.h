#pragma once

#include <cstddef>
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
  /// read its cache line first, 2 of 30 bytes a parameter. Measured on two Sapphire Rapids cores at
  /// 128M parameters: 1.08 times as fast (medians of 12, in turns). All else is read and written in
  /// place, where nothing is saved. Needs `parameter_out` at a multiple of 64 bytes.
  bool stream_parameter = false;
};

/// Parameters of a chunk from which on it is no use to leave the new ones in a cache.
inline constexpr std::int64_t kStreamCount = 1 << 19;

/// Parameters that a pass takes at once: a cache line of a 16-bit array, a whole number of pairs of
/// vectors of up to 16 lanes.
inline constexpr std::int64_t kStepBlock = 32;

/// A whole block in place of `count` (fewer than a block's) elements from `begin` on of a job's
/// arrays: their values and then zeros.
class PaddedBlock {
 public:
  PaddedBlock(const StepJob& job, std::int64_t begin, std::int64_t count);
  PaddedBlock(const PaddedBlock&) = delete;
  PaddedBlock& operator=(const PaddedBlock&) = delete;

  /// A job like the one given, on the block.
  [[nodiscard]] const StepJob& job() const { return job_; }
  /// Copies what was written in the block to the given job's arrays.
  void write_back() const;

 private:
  struct Array {
    alignas(64) std::byte copy[kStepBlock * sizeof(float)] = {};
    void* target = nullptr;  // null: not written
    std::size_t bytes = 0;
  };

  StepJob job_;
  Array arrays_[5];  // one for each pair of `StepArrays`
};

/// Sets all but the coefficients.
[[nodiscard]] StepJob make_step_job(StateLayout layout, const ChunkViews& chunk);

/// The step is cut among threads at multiples of so many parameters: some 28 bytes each, so
/// 450 KiB. Who touches a chunk's memory first in a loop of `count` by this leaves each NUMA node
/// with what its threads will update.
inline constexpr std::int64_t kStepGrain = 1 << 14;

}  // namespace terrace::kernels
