#pragma once

#include "terrace/core/workers.h"
#include "terrace/kernels/cpu_target.h"
#include "terrace/kernels/optimizer_step.h"

namespace terrace::kernels {

/// Reads every source and writes every target of `chunk` as the host's `StepArgs` (the same arrays,
/// bytes, vector width, kinds of store and cut among the workers), without arithmetic: the time
/// that memory alone takes, and so the limit that the step is measured against. What is both read
/// and written in place keeps its value; other targets hold no meaningful values afterwards. At
/// once, on `workers` and the calling thread.
void optimizer_streams(Workers& workers, StateLayout layout, const ChunkViews& chunk,
                       CpuTarget target = {});

}  // namespace terrace::kernels
