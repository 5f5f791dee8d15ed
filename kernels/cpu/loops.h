#pragma once

#include <cstdint>

#include "terrace/core/workers.h"
#include "terrace/kernels/cpu_target.h"
#include "terrace/kernels/op_args.h"

// The operations that are loops over memory, each compiled for every instruction set by Highway and
// run at once, on the calling thread and `loops.workers`. Arguments have been checked.

namespace terrace::kernels {

struct Loops {
  Workers& workers;
  CpuTarget target;
};

void run(const Loops& loops, const BiasGradientArgs& args);
void run(const Loops& loops, const EmbeddingArgs& args);
void run(const Loops& loops, const EmbeddingBackwardArgs& args);
void run(const Loops& loops, const NormArgs& args);
void run(const Loops& loops, const NormBackwardArgs& args);
void run(const Loops& loops, const RotaryArgs& args);
void run(const Loops& loops, const SwigluArgs& args);
void run(const Loops& loops, const SwigluBackwardArgs& args);
void run(const Loops& loops, const GeluArgs& args);
void run(const Loops& loops, const GeluBackwardArgs& args);
void run(const Loops& loops, const AddArgs& args);
void run(const Loops& loops, const CrossEntropyArgs& args);
void run(const Loops& loops, const GatherRowsArgs& args);
void run(const Loops& loops, const ConvertArgs& args);
void run(const Loops& loops, const SumArgs& args);
void run(const Loops& loops, const ClearArgs& args);

[[nodiscard]] std::uint64_t size_scratch(const BiasGradientArgs& args);
[[nodiscard]] std::uint64_t size_scratch(const EmbeddingBackwardArgs& args);
[[nodiscard]] std::uint64_t size_scratch(const NormBackwardArgs& args);

/// `ConvertArgs` on the calling thread alone.
void convert_serially(CpuTarget cpu, View target, View source, std::int64_t count);

}  // namespace terrace::kernels
