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
  bool stream_parameter = false;  ///< write the parameter past the caches
};

}  // namespace terrace::kernels
