#pragma once

#include <memory>
#include <string>

#include "kernels/ops_conformance.h"
#include "terrace/device/device.h"
#include "terrace/kernels/cpu.h"

namespace terrace::kernels {

[[nodiscard]] inline Table cpu_table(const std::string& name, const CpuOptions& options) {
  return {name, [options] { return make_cpu_ops(options); }, false};
}

/// The host device with two threads of compute.
[[nodiscard]] inline Machine cpu_machine() {
  return {device::make_host_device(), cpu_table("cpu", {.threads = 2})};
}

}  // namespace terrace::kernels
