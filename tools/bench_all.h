#pragma once

#include "bench_compute.h"
#include "bench_copy.h"
#include "bench_disk.h"
#include "bench_optimizer.h"
#include "terrace/plan/hardware_profile.h"
#include "terrace/train/watch.h"

namespace terrace::tools {

/// `terrace bench all`: the other benchmarks, of each what a hardware profile holds.
struct AllBenchOptions {
  CopyBenchOptions copy;
  OptimizerBenchOptions optimizer;
  ComputeBenchOptions compute;
  DiskBenchOptions disk;  ///< without paths the drives are not measured
};

/// Measures this machine; says on `log` what it is about to do. What was not measured stays
/// unknown. Errors: as the single benchmarks.
[[nodiscard]] plan::HardwareProfile bench_all(const AllBenchOptions& options, train::Watch& watch,
                                              Log& log);

/// Its known figures for people, a line each.
[[nodiscard]] std::string to_table(const plan::HardwareProfile& profile);

}  // namespace terrace::tools
