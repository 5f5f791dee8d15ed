#pragma once

#include <cstdint>

#include "terrace/core/dtype.h"
#include "terrace/device/memory.h"

// The arguments of each operation of `Ops`. Legend: N rows or tokens (N = B*T), B rows of a
// micro-batch, T tokens a row, C hidden size, V vocabulary, H heads, G key-value heads, D head
// size. All matrices are row-major; a `stride` counts elements from one row to the next, 0 meaning
// dense. An optional operand is left out by a null pointer. Operands do not overlap unless stated.

namespace terrace::kernels {

/// Elements of one dtype in device memory; the shape is the operation's business. Owns nothing.
struct View {
  device::Pointer data{};
  DType dtype = DType::f32;

  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(data); }
  /// The view that begins `elements` further on.
  [[nodiscard]] View offset(std::int64_t elements) const {
    return {data + static_cast<std::uint64_t>(elements) * size_of(dtype), dtype};
  }
};

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

/// rms:   y = x / sqrt(mean(x^2) + eps) * weight              (Zhang and Sennrich 2019)
/// layer: y = (x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016)
enum class NormKind : std::uint8_t { rms, layer };

/// FP32 values of statistics that a norm saves a row: rms 1/sqrt(..); layer mean, 1/sqrt(..).
[[nodiscard]] constexpr std::int64_t norm_statistics(NormKind kind) {
  return kind == NormKind::rms ? 1 : 2;
}

/// Without `residual`: output = norm(input). With it: sum = input + residual, rounded to its dtype,
/// and output = norm(sum); `sum` may be `input` or `residual` itself.
struct NormArgs {
  NormKind kind = NormKind::rms;
  float epsilon = 0;
  std::int64_t rows = 0;         ///< N
  std::int64_t columns = 0;      ///< C
  View input{};                  ///< [N, C]
  View residual{};               ///< optional, [N, C]
  View sum{};                    ///< [N, C], with `residual` only
  View weight{};                 ///< [C]
  View bias{};                   ///< [C], layer only
  View output{};                 ///< [N, C]
  device::Pointer statistics{};  ///< FP32 [N, norm_statistics(kind)]; optional
};

/// d_input = d_residual (optional) + the gradient through the norm; d_input may be d_residual or
/// d_output itself. d_output may be f32 where the rest is bf16 (and is then not d_input). d_weight
/// and d_bias (layer only): FP32 [C].
struct NormBackwardArgs {
  NormKind kind = NormKind::rms;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  View input{};   ///< [N, C]: what was normed (the forward's `sum` where it had one)
  View weight{};  ///< [C]
  device::Pointer statistics{};
  View d_output{};    ///< [N, C]
  View d_residual{};  ///< optional, [N, C]
  View d_input{};     ///< [N, C]
  View d_weight{};
  View d_bias{};
  bool accumulate_weight = false;
  bool accumulate_bias = false;
  device::Pointer scratch{};
};

/// Rotary positions (Su et al. 2021) in Hugging Face Llama's layout, in place on `heads` heads of
/// every token: with angle = position * theta^(-2i/D), i < D/2,
/// (x[i], x[i + D/2]) becomes (x[i] cos - x[i + D/2] sin, x[i + D/2] cos + x[i] sin).
/// The position of a token is its place in its row. `inverse` turns back: the backward pass.
/// Queries and keys that lie side by side (packed q k v) turn in one call, heads = H + G.
struct RotaryArgs {
  std::int64_t rows = 0;      ///< B
  std::int64_t sequence = 0;  ///< T
  std::int64_t heads = 0;
  std::int64_t head_size = 0;  ///< D, even
  float theta = 10000;
  bool inverse = false;
  View values{};            ///< [B, T, heads, D]
  std::int64_t stride = 0;  ///< elements from one token to the next; 0: heads * D
};

/// Causal attention with grouped queries, never storing T x T (Dao et al. 2022): head h uses
/// key-value head h / (H / G). Token t sees tokens (t - window, t]; window 0 means all before it.
/// A token's heads lie side by side, D elements each; strides are from one token to the next, so
/// packed q k v are three views with the same stride.
struct AttentionArgs {
  std::int64_t rows = 0;       ///< B
  std::int64_t sequence = 0;   ///< T
  std::int64_t heads = 0;      ///< H
  std::int64_t kv_heads = 0;   ///< G, divides H
  std::int64_t head_size = 0;  ///< D
  std::int64_t window = 0;
  float scale = 0;  ///< of the scores, usually 1 / sqrt(D)
  View q{};         ///< [B, T, H, D]
  std::int64_t q_stride = 0;
  View k{};  ///< [B, T, G, D]
  std::int64_t k_stride = 0;
  View v{};  ///< [B, T, G, D]
  std::int64_t v_stride = 0;
  View output{};  ///< [B, T, H, D], dense
  /// FP32 [B, H, T]: log of the sum of exp(score). Left for backward.
  device::Pointer log_sum_exp{};
  device::Pointer scratch{};
};

/// Gradients by recomputation from q, k, v, output and log_sum_exp. d_q, d_k, d_v have the strides
/// and shapes of q, k, v, may be packed likewise, and do not overlap these.
struct AttentionBackwardArgs {
  AttentionArgs forward;
  View d_output{};  ///< [B, T, H, D], dense
  View d_q{};
  View d_k{};
  View d_v{};
};

/// output [N, F] = silu(gate) * up (Shazeer 2020). gate and up [N, F] may be packed side by side.
struct SwigluArgs {
  std::int64_t rows = 0;     ///< N
  std::int64_t columns = 0;  ///< F
  View gate{};
  View up{};
  std::int64_t stride = 0;  ///< of gate and up
  View output{};            ///< dense
};

/// d_gate and d_up may be gate and up themselves. `output` (optional) is written once more, so that
/// it need not be kept for the next product's weight gradient; it may be d_output itself.
struct SwigluBackwardArgs {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  View gate{};
  View up{};
  View d_output{};  ///< [N, F], dense
  View d_gate{};
  View d_up{};
  std::int64_t stride = 0;  ///< of gate, up, d_gate and d_up
  View output{};
};

/// output = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): "gelu_new" (Hendrycks and Gimpel
/// 2016).
struct GeluArgs {
  std::int64_t count = 0;
  View input{};
  View output{};
};

/// d_input may be input or d_output. `output` (optional) is the forward's result once more.
struct GeluBackwardArgs {
  std::int64_t count = 0;
  View input{};
  View d_output{};
  View d_input{};
  View output{};
};

/// output = a + b; output may be a or b.
struct AddArgs {
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
  std::int64_t count = 0;
  std::int64_t columns = 0;
  std::int64_t source_rows = 0;
  device::Pointer indices{};
  View source{};
  View output{};
};

}  // namespace terrace::kernels
