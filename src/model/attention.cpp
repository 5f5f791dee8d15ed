#include <cmath>

#include "unit.h"

namespace terrace::model {

kernels::AttentionArgs packed_attention(const Config& config, BatchShape shape, kernels::View qkv,
                                        kernels::View output, device::Pointer log_sum_exp) {
  const std::int64_t q_width = config.num_attention_heads * config.head_dim;
  const std::int64_t kv_width = config.num_key_value_heads * config.head_dim;
  const std::int64_t stride = q_width + 2 * kv_width;
  kernels::AttentionArgs args;
  args.rows = shape.rows;
  args.sequence = shape.sequence;
  args.heads = config.num_attention_heads;
  args.kv_heads = config.num_key_value_heads;
  args.head_size = config.head_dim;
  args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim)));
  args.q = qkv;
  args.q_stride = stride;
  args.k = qkv.offset(q_width);
  args.k_stride = stride;
  args.v = qkv.offset(q_width + kv_width);
  args.v_stride = stride;
  args.output = output;
  args.log_sum_exp = log_sum_exp;
  return args;
}

kernels::AttentionBackwardArgs packed_attention_backward(const kernels::AttentionArgs& forward,
                                                         kernels::View d_output,
                                                         kernels::View d_qkv) {
  const std::int64_t q_width = forward.heads * forward.head_size;
  const std::int64_t kv_width = forward.kv_heads * forward.head_size;
  return {.forward = forward,
          .d_output = d_output,
          .d_q = d_qkv,
          .d_k = d_qkv.offset(q_width),
          .d_v = d_qkv.offset(q_width + kv_width)};
}

}  // namespace terrace::model
