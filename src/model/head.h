#pragma once

#include <cstdint>

#include "linear.h"
#include "terrace/model/config.h"
#include "work.h"

namespace terrace::model {

/// The final norm, the product with the vocabulary, and cross-entropy, in chunks of tokens. Its
/// calls are `Model`'s. Immutable.
class Head {
 public:
  Head(const Config& config, DType compute);

  /// Tokens in a chunk at most: a function of shapes alone, so that placement cannot change bits.
  [[nodiscard]] std::int64_t chunk_tokens() const { return chunk_tokens_; }

  /// Writes the loss to `loss_sum`, a double.
  void loss(Work& work, const Pass& pass, device::Pointer loss_sum) const;
  /// Also writes d_boundary and the gradients, of the loss times `scale`.
  void forward_backward(Work& work, const Pass& pass, float scale, device::Pointer loss_sum) const;
  /// FP32 [positions.size(), V] to `logits`.
  void logits(Work& work, const Pass& pass, device::Span<std::int32_t> positions,
              device::Pointer logits) const;

 private:
  struct Chunk;
  struct Buffers;
  [[nodiscard]] Chunk chunk_at(BatchShape shape, std::int64_t first) const;
  Buffers carve(Work& work, const Chunk& largest, bool backward) const;
  void chunk_loss(Work& work, const Pass& pass, const Chunk& chunk,
                  const kernels::CrossEntropyArgs& cross_entropy, const Buffers& buffers) const;
  void chunk_backward(Work& work, const Pass& pass, const Chunk& chunk,
                      const Buffers& buffers) const;
  void norm(Work& work, const Pass& pass, std::int64_t rows, kernels::View input,
            const Buffers& buffers) const;

  Config config_;
  DType compute_;
  kernels::NormKind norm_kind_;
  std::size_t table_;  ///< place of the vocabulary's weight among the unit's parameters
  std::int64_t chunk_tokens_;
};

}  // namespace terrace::model
