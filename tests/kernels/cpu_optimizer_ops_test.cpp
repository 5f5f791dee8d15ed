#include <fmt/core.h>

#include "kernels/optimizer_conformance.h"
#include "terrace/device/opaque.h"
#include "terrace/kernels/cpu.h"

namespace terrace::kernels {
namespace {

OptimizerTable cpu_table_of(CpuTarget target, int threads) {
  struct Owned {
    Owned(int threads_in, CpuTarget target_in)
        : workers(threads_in), ops(make_cpu_optimizer_ops(workers, target_in)) {}
    Workers workers;
    std::unique_ptr<OptimizerOps> ops;
  };
  return {fmt::format("{}, {} threads", target.name(), threads), [=] {
            const auto owned = std::make_shared<Owned>(threads, target);
            return std::shared_ptr<OptimizerOps>(owned, owned->ops.get());
          }};
}

/// Every instruction set with 2, 1 and 3 threads.
OptimizerImplementation every_cpu_on_host() {
  OptimizerImplementation cpu{"host", device::make_host_device, {}};
  for (const int threads : {2, 1, 3}) {
    for (const CpuTarget target : CpuTarget::all()) {
      cpu.tables.push_back(cpu_table_of(target, threads));
    }
  }
  return cpu;
}

OptimizerImplementation cpu_on_opaque() {
  return {"opaque",
          [] { return device::make_opaque_device(device::make_host_device()); },
          {cpu_table_of(CpuTarget(), 2)}};
}

INSTANTIATE_TEST_SUITE_P(Cpu, OptimizerConformance,
                         ::testing::Values(every_cpu_on_host(), cpu_on_opaque()),
                         [](const auto& implementation) { return implementation.param.name; });

}  // namespace
}  // namespace terrace::kernels
