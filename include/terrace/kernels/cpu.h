#pragma once

#include <memory>
#include <string>

#include "terrace/core/workers.h"
#include "terrace/kernels/cpu_target.h"
#include "terrace/kernels/ops.h"
#include "terrace/kernels/optimizer_ops.h"

namespace terrace::kernels {

struct CpuOptions {
  int threads = 1;  ///< for matrix products (OpenMP) and for the loops (Workers) alike
  /// False: as on a CPU for which oneDNN has no bf16 products; for tests and comparison.
  bool bf16_products = true;
  CpuTarget target{};  ///< of the loops; oneDNN chooses its own instructions
};

/// The operations on the host device: oneDNN's matrix products, the rest by Highway on the best
/// instruction set that the machine has.
/// Errors: usage, where OpenMP gives a smaller team than asked for (its products check that again);
/// out_of_memory, where the system refuses so many threads.
[[nodiscard]] std::unique_ptr<Ops> make_cpu_ops(const CpuOptions& options);

/// The optimizer's arithmetic on the host, by `workers`, which outlive it and which nobody else
/// uses meanwhile. Bits depend neither on their number nor on `target`.
[[nodiscard]] std::unique_ptr<OptimizerOps> make_cpu_optimizer_ops(Workers& workers,
                                                                   CpuTarget target = {});

}  // namespace terrace::kernels
