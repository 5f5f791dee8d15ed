#pragma once

#include <cstdint>
#include <string>

#include "terrace/core/units.h"
#include "terrace/device/device.h"
#include "terrace/train/watch.h"

namespace terrace::tools {

/// `terrace bench copy`: copies through the device's streams, as the copy lanes make them.
struct CopyBenchOptions {
  std::uint64_t bytes = 64 * kMiB;  ///< of one copy
  int copies = 8;                   ///< queued one behind the other in a repetition
  int repetitions = 5;              ///< of which the median is shown, after one not counted
};

/// Rates in 10^9 bytes a second.
struct CopyBench {
  std::string device;
  double h2d_gb_per_s = 0;  ///< from pinned memory
  double d2h_gb_per_s = 0;
  double both_gb_per_s = 0;  ///< both ways at once, on two streams; both counted
  double h2d_pageable_gb_per_s = 0;
  double d2h_pageable_gb_per_s = 0;
  double device_gb_per_s = 0;  ///< written within the device's memory
  /// What a task costs that waits for one of another stream, does nothing, and tells.
  double task_seconds = 0;
};

/// Errors: usage, for numbers that are not positive; out_of_memory, saying how much was needed.
[[nodiscard]] CopyBench bench_copy(device::Device& device, const CopyBenchOptions& options,
                                   train::Watch& watch);

/// {"schema": "terrace.bench.copy/1", ...} with the members' names as keys.
[[nodiscard]] std::string to_json(const CopyBench& bench);

/// A table for people.
[[nodiscard]] std::string to_table(const CopyBench& bench);

}  // namespace terrace::tools
