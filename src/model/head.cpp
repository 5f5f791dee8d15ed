#include "head.h"

#include <algorithm>

// Legend: N tokens, n tokens of a chunk, C hidden size, V vocabulary, S = V rounded up to a stride
// of whole cache lines.
//
// A chunk's logits are scratch. They should be small, but each chunk also reads the weight's [V, C]
// once and reads and writes its FP32 gradient once: n tokens do 4 n V C operations on 8 V C bytes
// of gradient, so few tokens make the products wait for memory. Hence what fits kLogitsBytes, or
// kEnoughTokens where their logits are no larger than the weight's gradient.

namespace terrace::model {
namespace {

using kernels::View;

constexpr std::int64_t kLogitsBytes = std::int64_t{8} << 20;
constexpr std::int64_t kEnoughTokens = 512;
constexpr std::int64_t kChunkMultiple = 32;  // whole tiles in the products

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return ceil_divide(value, unit) * unit;
}

std::int64_t logits_stride(std::int64_t vocabulary) {
  return round_up(vocabulary, static_cast<std::int64_t>(kAlignment / sizeof(float)));
}

std::int64_t most_chunk_tokens(const Config& config) {
  const std::int64_t row_bytes = logits_stride(config.vocab_size) * 4;
  const std::int64_t tokens =
      std::max(kLogitsBytes / row_bytes, std::min(config.hidden_size, kEnoughTokens));
  return std::max(kChunkMultiple, tokens / kChunkMultiple * kChunkMultiple);
}

}  // namespace

struct Head::Chunk {
  std::int64_t first = 0;
  std::int64_t tokens = 0;
};

struct Head::Buffers {
  View h;                      ///< [n, C], the norm's output
  View d_h;                    ///< f32 [n, C], backward only
  View logits;                 ///< f32 [n, S]
  View d_logits;               ///< [n, S] in place of the logits, compute dtype
  std::int64_t d_stride = 0;   ///< elements between rows of d_logits
  device::Pointer statistics;  ///< f32 [n] or [n, 2]
};

Head::Head(const Config& config, DType compute)
    : config_(config),
      compute_(compute),
      norm_kind_(config.architecture == Architecture::gpt2 ? kernels::NormKind::layer
                                                           : kernels::NormKind::rms),
      table_(norm_kind_ == kernels::NormKind::layer ? 2 : 1),
      chunk_tokens_(most_chunk_tokens(config)) {}

/// Chunks are of nearly equal size.
Head::Chunk Head::chunk_at(BatchShape shape, std::int64_t first) const {
  const std::int64_t chunks = ceil_divide(shape.tokens(), chunk_tokens_);
  const std::int64_t tokens = round_up(ceil_divide(shape.tokens(), chunks), kChunkMultiple);
  return {first, std::min(tokens, shape.tokens() - first)};
}

Head::Buffers Head::carve(Work& work, const Chunk& largest, bool backward) const {
  const std::int64_t n = largest.tokens, stride = logits_stride(config_.vocab_size);
  Carver& scratch = work.scratch();
  Buffers buffers;
  buffers.h = scratch.view(compute_, n * config_.hidden_size);
  buffers.logits = scratch.view(DType::f32, n * stride);
  buffers.statistics = scratch.view(DType::f32, n * kernels::norm_statistics(norm_kind_)).data;
  if (backward) {
    buffers.d_h = scratch.view(DType::f32, n * config_.hidden_size);
    buffers.d_logits = {buffers.logits.data, compute_};
    buffers.d_stride = stride * static_cast<std::int64_t>(sizeof(float) / size_of(compute_));
  }
  return buffers;
}

void Head::norm(Work& work, const Pass& pass, std::int64_t rows, View input,
                const Buffers& buffers) const {
  kernels::NormArgs args;
  args.kind = norm_kind_;
  args.epsilon = static_cast<float>(config_.norm_eps);
  args.rows = rows;
  args.columns = config_.hidden_size;
  args.input = input;
  args.weight = pass.weights[0];
  if (norm_kind_ == kernels::NormKind::layer) args.bias = pass.weights[1];
  args.output = buffers.h;
  args.statistics = buffers.statistics;
  work.norm_forward(args);
}

/// Norm, logits and `cross_entropy`, which says where the losses go and whether the gradient does.
void Head::chunk_loss(Work& work, const Pass& pass, const Chunk& chunk,
                      const kernels::CrossEntropyArgs& cross_entropy,
                      const Buffers& buffers) const {
  const View input{pass.activations.input, compute_};
  norm(work, pass, chunk.tokens, input.offset(chunk.first * config_.hidden_size), buffers);
  const Linear product{chunk.tokens, config_.hidden_size, config_.vocab_size};
  const std::int64_t stride = logits_stride(config_.vocab_size);
  product.forward(
      work, {.x = {buffers.h}, .weight = pass.weights[table_], .y = {buffers.logits, stride}});

  kernels::CrossEntropyArgs args = cross_entropy;
  args.rows = chunk.tokens;
  args.vocabulary = config_.vocab_size;
  args.logits = buffers.logits;
  args.logits_stride = stride;
  args.targets = pass.targets + static_cast<std::uint64_t>(chunk.first) * sizeof(std::int32_t);
  args.losses = args.losses + static_cast<std::uint64_t>(chunk.first) * sizeof(float);
  work.cross_entropy(args);
}

void Head::chunk_backward(Work& work, const Pass& pass, const Chunk& chunk,
                          const Buffers& buffers) const {
  const auto accumulated = [&](std::size_t parameter) {
    GradientView gradient = pass.gradients[parameter];
    gradient.accumulate = gradient.accumulate || chunk.first > 0;
    return gradient;
  };
  const Linear product{chunk.tokens, config_.hidden_size, config_.vocab_size};
  const Rows d_logits{buffers.d_logits, buffers.d_stride};
  product.backward_weight(work, d_logits, {buffers.h}, accumulated(table_));
  product.backward_input(work, d_logits, pass.weights[table_], {buffers.d_h});

  const std::int64_t first_element = chunk.first * config_.hidden_size;
  kernels::NormBackwardArgs args;
  args.kind = norm_kind_;
  args.rows = chunk.tokens;
  args.columns = config_.hidden_size;
  args.input = View{pass.activations.input, compute_}.offset(first_element);
  args.weight = pass.weights[0];
  args.statistics = buffers.statistics;
  args.d_output = buffers.d_h;
  args.d_input = View{pass.d_boundary, compute_}.offset(first_element);
  const GradientView d_weight = accumulated(0);
  args.d_weight = d_weight.values;
  args.accumulate_weight = d_weight.accumulate;
  if (norm_kind_ == kernels::NormKind::layer) {
    const GradientView d_bias = accumulated(1);
    args.d_bias = d_bias.values;
    args.accumulate_bias = d_bias.accumulate;
  }
  work.norm_backward(args);
}

void Head::loss(Work& work, const Pass& pass, device::Pointer loss_sum) const {
  const std::int64_t n = pass.shape.tokens();
  kernels::CrossEntropyArgs cross_entropy;
  cross_entropy.losses = work.scratch().view(DType::f32, n).data;
  const Buffers buffers = carve(work, chunk_at(pass.shape, 0), false);
  for (Chunk chunk = chunk_at(pass.shape, 0); chunk.tokens > 0;
       chunk = chunk_at(pass.shape, chunk.first + chunk.tokens)) {
    chunk_loss(work, pass, chunk, cross_entropy, buffers);
  }
  work.sum_f64(cross_entropy.losses, n, loss_sum);
}

void Head::forward_backward(Work& work, const Pass& pass, float scale,
                            device::Pointer loss_sum) const {
  const std::int64_t n = pass.shape.tokens();
  const Buffers buffers = carve(work, chunk_at(pass.shape, 0), true);
  kernels::CrossEntropyArgs cross_entropy;
  cross_entropy.scale = scale;
  cross_entropy.losses = work.scratch().view(DType::f32, n).data;
  cross_entropy.gradient = buffers.d_logits;
  cross_entropy.gradient_stride = buffers.d_stride;
  for (Chunk chunk = chunk_at(pass.shape, 0); chunk.tokens > 0;
       chunk = chunk_at(pass.shape, chunk.first + chunk.tokens)) {
    chunk_loss(work, pass, chunk, cross_entropy, buffers);
    chunk_backward(work, pass, chunk, buffers);
  }
  work.sum_f64(cross_entropy.losses, n, loss_sum);
}

void Head::logits(Work& work, const Pass& pass, device::Span<std::int32_t> positions,
                  device::Pointer logits) const {
  const auto rows = static_cast<std::int64_t>(positions.size());
  const std::int64_t c = config_.hidden_size, v = config_.vocab_size;
  const View gathered = work.scratch().view(compute_, rows * c);
  Buffers buffers;
  buffers.h = work.scratch().view(compute_, rows * c);
  work.gather_rows({.count = rows,
                    .columns = c,
                    .source_rows = pass.shape.tokens(),
                    .indices = positions.data(),
                    .source = {pass.activations.input, compute_},
                    .output = gathered});
  norm(work, pass, rows, gathered, buffers);
  // One row at a time when there are fewer than planned for: the product's scratch is known for
  // these two shapes only.
  const std::int64_t step = rows == pass.shape.rows ? rows : 1;
  for (std::int64_t row = 0; row < rows; row += step) {
    Linear{step, c, v}.forward(work, {.x = {buffers.h.offset(row * c)},
                                      .weight = pass.weights[table_],
                                      .y = {View{logits, DType::f32}.offset(row * v)}});
  }
}

}  // namespace terrace::model
