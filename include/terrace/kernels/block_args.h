#pragma once

#include <cstdint>
#include <string_view>

#include "terrace/kernels/view.h"

// What blocks are made of beside matrix products: norms, attention, activations. Legend and rules
// as in op_args.h.

namespace terrace::kernels {

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
  static constexpr std::string_view kName = "norm";
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
  static constexpr std::string_view kName = "norm backward";
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
  static constexpr std::string_view kName = "rotary";
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
  static constexpr std::string_view kName = "attention";
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
  static constexpr std::string_view kName = "attention backward";
  AttentionArgs forward;
  View d_output{};  ///< [B, T, H, D], dense
  View d_q{};
  View d_k{};
  View d_v{};
  device::Pointer scratch{};  ///< the forward's is not used
};

/// output [N, F] = silu(gate) * up (Shazeer 2020). gate and up [N, F] may be packed side by side.
struct SwigluArgs {
  static constexpr std::string_view kName = "swiglu";
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
  static constexpr std::string_view kName = "swiglu backward";
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
  static constexpr std::string_view kName = "gelu";
  std::int64_t count = 0;
  View input{};
  View output{};
};

/// d_input may be input or d_output. `output` (optional) is the forward's result once more.
struct GeluBackwardArgs {
  static constexpr std::string_view kName = "gelu backward";
  std::int64_t count = 0;
  View input{};
  View d_output{};
  View d_input{};
  View output{};
};

}  // namespace terrace::kernels
