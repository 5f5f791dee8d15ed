#pragma once

#include <memory>
#include <string>

#include "terrace/core/log.h"
#include "terrace/kernels/ops.h"

namespace terrace::kernels {

struct CpuOptions {
  int threads = 1;  ///< for matrix products (OpenMP) and for the loops (Workers) alike
};

/// The operations on the host device: oneDNN's matrix products, the rest by Highway on the best
/// instruction set that the machine has. `log` is told (once) what is used instead where the CPU
/// lacks bf16 instructions, and outlives the result.
[[nodiscard]] std::unique_ptr<Ops> make_cpu_ops(const CpuOptions& options, Log& log);

}  // namespace terrace::kernels
