#include "terrace/runtime/machine.h"

#include "terrace/core/error.h"
#include "terrace/device/gpu.h"
#include "terrace/kernels/cpu.h"

namespace terrace::runtime {
namespace {

/// Threads of a run beside those that compute: streams, lanes, the disk's, the signals'.
constexpr int kOtherThreads = 13;

}  // namespace

Machine make_machine(const MachineOptions& options, Log& log) {
  require(options.device != DeviceKind::cuda, ErrorKind::device,
          "--device is cuda, but this build computes on the host device only: use --device cpu");
  Machine machine;
  machine.threads = choose_threads(options.threads);
  // OpenMP's and oneTBB's, which both end badly where the system has no more.
  if (options.runs_here) require_threads(2 * (machine.threads.threads - 1) + kOtherThreads);
  machine.device = device::make_host_device();
  machine.device_reason = "as asked";
  if (options.device == DeviceKind::automatic) {
    const device::GpuSearch search = device::look_for_gpu();
    machine.device_reason = search.reason;
    if (search.found && options.runs_here) log.fallback("device", search.reason);
  }
  machine.ops = kernels::make_cpu_ops({.threads = machine.threads.threads});
  machine.workers = std::make_unique<Workers>(machine.threads);
  machine.optimizer_ops = kernels::make_cpu_optimizer_ops(*machine.workers);
  return machine;
}

}  // namespace terrace::runtime
