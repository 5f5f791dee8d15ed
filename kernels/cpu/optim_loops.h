#pragma once

#include "cpu/loops.h"
#include "terrace/kernels/optimizer_ops.h"

// The optimizer's operations, run at once on the calling thread and `loops.workers`. Arguments have
// been checked.

namespace terrace::kernels {

void run(const Loops& loops, const StepArgs& args);
void run(const Loops& loops, const SumSquaresArgs& args);
void run(const Loops& loops, const SplitMasterArgs& args);
void run(const Loops& loops, const JoinMasterArgs& args);
void run(const Loops& loops, const NarrowMasterArgs& args);
void run(const Loops& loops, const FirstTouchArgs& args);

}  // namespace terrace::kernels
