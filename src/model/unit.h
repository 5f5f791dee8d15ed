#pragma once

#include <cstdint>
#include <memory>

#include "terrace/model/config.h"
#include "work.h"

namespace terrace::model {

/// The embedding or a block: from its input (or the tokens) to its output, and back. Its calls are
/// `Model`'s, on a `Work` that enqueues or only measures. Immutable.
class Unit {
 public:
  virtual ~Unit() = default;
  [[nodiscard]] virtual std::uint64_t saved_bytes(BatchShape shape) const = 0;
  virtual void forward(Work& work, const Pass& pass) const = 0;
  virtual void backward(Work& work, const Pass& pass) const = 0;
};

[[nodiscard]] std::unique_ptr<Unit> make_embedding(const Config& config, DType compute);
[[nodiscard]] std::unique_ptr<Unit> make_llama_block(const Config& config, DType compute);
[[nodiscard]] std::unique_ptr<Unit> make_gpt2_block(const Config& config, DType compute);

/// The arguments of attention on packed queries, keys and values [N, (H + 2 G) * D].
[[nodiscard]] kernels::AttentionArgs packed_attention(const Config& config, BatchShape shape,
                                                      kernels::View qkv, kernels::View output,
                                                      device::Pointer log_sum_exp);
/// Likewise for the gradients; `d_qkv` is packed as `qkv` is.
[[nodiscard]] kernels::AttentionBackwardArgs packed_attention_backward(
    const kernels::AttentionArgs& forward, kernels::View d_output, kernels::View d_qkv);

}  // namespace terrace::model
