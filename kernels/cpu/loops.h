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

void swiglu_forward(const Loops& loops, const SwigluArgs& args);
void swiglu_backward(const Loops& loops, const SwigluBackwardArgs& args);
void gelu_forward(const Loops& loops, const GeluArgs& args);
void gelu_backward(const Loops& loops, const GeluBackwardArgs& args);
void add(const Loops& loops, const AddArgs& args);
void convert(const Loops& loops, View target, View source, std::int64_t count);

/// The same on the calling thread alone.
void convert_serially(CpuTarget cpu, View target, View source, std::int64_t count);

void norm_forward(const Loops& loops, const NormArgs& args);
void norm_backward(const Loops& loops, const NormBackwardArgs& args);
[[nodiscard]] std::uint64_t norm_backward_scratch(const NormBackwardArgs& args);
void bias_gradient(const Loops& loops, const BiasGradientArgs& args);
[[nodiscard]] std::uint64_t bias_gradient_scratch(const BiasGradientArgs& args);

void rotary(const Loops& loops, const RotaryArgs& args);

void embedding_forward(const Loops& loops, const EmbeddingArgs& args);
void embedding_backward(const Loops& loops, const EmbeddingBackwardArgs& args);
[[nodiscard]] std::uint64_t embedding_backward_scratch(const EmbeddingBackwardArgs& args);
void gather_rows(const Loops& loops, const GatherRowsArgs& args);

void cross_entropy(const Loops& loops, const CrossEntropyArgs& args);
[[nodiscard]] double sum_f64(const float* values, std::int64_t count);

}  // namespace terrace::kernels
