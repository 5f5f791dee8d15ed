#pragma once

#include "terrace/device/device.h"
#include "terrace/io/page_store.h"
#include "terrace/kernels/ops.h"
#include "terrace/kernels/optimizer_ops.h"
#include "terrace/model/model.h"
#include "terrace/plan/plan.h"
#include "terrace/runtime/run_memory.h"
#include "terrace/shard/layout.h"

namespace terrace::runtime {

/// What running a plan needs. Owns nothing; all of it outlives whoever is handed it.
struct RunContext {
  device::Device& device;
  kernels::Ops& ops;
  kernels::OptimizerOps& optimizer_ops;
  const model::Model& model;
  const shard::Layout& layout;
  const plan::Plan& plan;
  RunMemory& memory;
  io::PageStore* store = nullptr;  ///< null when the plan uses no disk
};

}  // namespace terrace::runtime
