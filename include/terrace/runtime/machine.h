#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "terrace/core/log.h"
#include "terrace/core/workers.h"
#include "terrace/device/device.h"
#include "terrace/kernels/ops.h"
#include "terrace/kernels/optimizer_ops.h"

namespace terrace::runtime {

enum class DeviceKind : std::uint8_t { automatic, host, cuda };

struct MachineOptions {
  DeviceKind device = DeviceKind::host;
  int threads = 0;        ///< of compute; 0: what the machine gives
  bool runs_here = true;  ///< false: only planned with, or asked what it can do
};

/// What this machine computes with. All who compute are handed one; nobody else makes a device or
/// a table of operations, but for measurements of one instruction set. Members are built in this
/// order.
struct Machine {
  ThreadCount threads;
  std::unique_ptr<device::Device> device;
  std::string device_reason;  ///< why it is this one: a clause
  std::unique_ptr<kernels::Ops> ops;
  std::unique_ptr<Workers> workers;  ///< the optimizer's; others' while no step is under way
  std::unique_ptr<kernels::OptimizerOps> optimizer_ops;
};

/// A GPU that is found and not used is said in the log, with the reason, unless the host device was
/// asked for. `log` outlives the result.
/// Errors: device for one that is not there; out_of_memory where the system has no more threads;
/// as `make_cpu_ops`.
[[nodiscard]] Machine make_machine(const MachineOptions& options, Log& log);

}  // namespace terrace::runtime
