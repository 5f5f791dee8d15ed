#pragma once

#include "terrace/core/workers.h"
#include "terrace/kernels/optimizer_step.h"

namespace terrace::kernels {

/// Reads every source and writes every target of `chunk` as `optimizer_step` does (the same arrays,
/// bytes, vector width, kinds of store and cut among the workers), without arithmetic: the time
/// that memory alone takes, and so the limit that the step is measured against. What is both read
/// and written in place keeps its value; other targets hold no meaningful values afterwards. Errors
/// and threads: as `optimizer_step`.
void optimizer_streams(Workers& workers, UpdateRule rule, StateLayout layout,
                       const ChunkViews& chunk, CpuTarget target = {});

}  // namespace terrace::kernels
