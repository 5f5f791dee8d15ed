#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

#include "terrace/kernels/block_args.h"
#include "terrace/kernels/view.h"

// The arguments of each operation of `Ops`, one struct an operation. Legend: N rows or tokens
// (N = B*T), B rows of a micro-batch, T tokens a row, C hidden size, V vocabulary, H heads, G
// key-value heads, D head size. All matrices are row-major; a `stride` counts elements from one row
// to the next, 0 meaning dense. An optional operand is left out by a null pointer. Operands do not
// overlap unless stated.

namespace terrace::kernels {

/// target [m, n] = a [m, k] * b [k, n] + bias [n] + residual [m, n] (+ target when `accumulate`).
/// `a_transposed`: a lies in memory as [k, m]; `b_transposed`: b lies as [n, k]. So for activations
/// x [N, in] and a Hugging Face Linear weight w [out, in]:
///   forward  m=N, n=out, k=in:  a=x, b=w, b_transposed          (GPT-2's Conv1D: not transposed)
///   d_x      m=N, n=in, k=out:  a=d_y, b=w                      (Conv1D: b_transposed)
///   d_w      m=out, n=in, k=N:  a=d_y, a_transposed, b=x        (Conv1D: m=in, n=out, a=x, b=d_y)
/// a and b have one dtype, f32 or bf16; the target has the same or f32; bias has a's dtype;
/// residual has the target's dtype and stride and may be the target itself (which is then added
/// to). accumulate: f32 targets only, and no residual then.
struct MatmulArgs {
  static constexpr std::string_view kName = "matmul";
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  View a{};
  std::int64_t a_stride = 0;
  View b{};
  std::int64_t b_stride = 0;
  View target{};
  std::int64_t target_stride = 0;
  View bias{};
  View residual{};
  bool a_transposed = false;
  bool b_transposed = false;
  bool accumulate = false;
  device::Pointer scratch{};
};

/// d_bias [columns], FP32 = the sum over rows of d_y [rows, columns].
struct BiasGradientArgs {
  static constexpr std::string_view kName = "bias gradient";
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  View d_y{};
  std::int64_t d_y_stride = 0;
  View d_bias{};
  bool accumulate = false;
  device::Pointer scratch{};
};

/// output [B, T, C] = table[tokens] (+ positions[t], GPT-2). tokens: int32 [B, T], each in
/// [0, vocabulary); the stream fails with an error of kind data otherwise.
struct EmbeddingArgs {
  static constexpr std::string_view kName = "embedding";
  std::int64_t rows = 0;      ///< B
  std::int64_t sequence = 0;  ///< T
  std::int64_t columns = 0;   ///< C
  std::int64_t vocabulary = 0;
  device::Pointer tokens{};
  View table{};      ///< [V, C]
  View positions{};  ///< optional, [at least T, C]
  View output{};
};

/// The gradients of the tables. d_table [V, C] and d_positions [position_rows, C] (optional) are
/// FP32 and written whole: rows that no token uses become zero unless `accumulate`.
struct EmbeddingBackwardArgs {
  static constexpr std::string_view kName = "embedding backward";
  std::int64_t rows = 0;
  std::int64_t sequence = 0;
  std::int64_t columns = 0;
  std::int64_t vocabulary = 0;
  std::int64_t position_rows = 0;
  device::Pointer tokens{};
  View d_output{};  ///< [B, T, C]
  View d_table{};
  View d_positions{};
  bool accumulate = false;
  bool accumulate_positions = false;
  device::Pointer scratch{};
};

/// output = a + b; output may be a or b.
struct AddArgs {
  static constexpr std::string_view kName = "add";
  std::int64_t count = 0;
  View a{};
  View b{};
  View output{};
};

/// For each row of logits [rows, V] with a target in [0, V): loss = log(sum(exp(logits))) -
/// logits[target]; for target -1 loss and gradient are 0. `gradient` (optional) [rows, V] =
/// (softmax - one_hot) * scale, f32 or bf16, may begin where `logits` does if its rows begin at the
/// same bytes (bf16 in place of f32: twice the stride). Any other target fails the stream (data).
struct CrossEntropyArgs {
  static constexpr std::string_view kName = "cross entropy";
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;  ///< V
  View logits{};
  std::int64_t logits_stride = 0;
  device::Pointer targets{};  ///< int32 [rows]
  float scale = 1;
  device::Pointer losses{};  ///< FP32 [rows], nats
  View gradient{};
  std::int64_t gradient_stride = 0;
};

/// output [count, columns] = source[indices]; indices: int32 [count], each in [0, source_rows).
struct GatherRowsArgs {
  static constexpr std::string_view kName = "gather rows";
  std::int64_t count = 0;
  std::int64_t columns = 0;
  std::int64_t source_rows = 0;
  device::Pointer indices{};
  View source{};
  View output{};
};

/// output [count] = source, elementwise, f32 and bf16 either way, to nearest even.
struct ConvertArgs {
  static constexpr std::string_view kName = "convert";
  std::int64_t count = 0;
  View source{};
  View output{};
};

/// sum, one double = the sum of `count` FP32 values, by a fixed tree.
struct SumArgs {
  static constexpr std::string_view kName = "sum";
  std::int64_t count = 0;
  device::Pointer values{};
  device::Pointer sum{};
};

/// Fills `bytes` of `target` with zeros.
struct ClearArgs {
  static constexpr std::string_view kName = "clear";
  device::Pointer target{};
  std::uint64_t bytes = 0;
};

/// One call of one operation.
using Op =
    std::variant<MatmulArgs, BiasGradientArgs, EmbeddingArgs, EmbeddingBackwardArgs, NormArgs,
                 NormBackwardArgs, RotaryArgs, AttentionArgs, AttentionBackwardArgs, SwigluArgs,
                 SwigluBackwardArgs, GeluArgs, GeluBackwardArgs, AddArgs, CrossEntropyArgs,
                 GatherRowsArgs, ConvertArgs, SumArgs, ClearArgs>;

/// Operations that need memory to work in.
template <class Args>
concept WithScratch = requires(Args args) {
  args.scratch;
};

}  // namespace terrace::kernels
