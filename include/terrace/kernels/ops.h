#pragma once

#include <cstdint>
#include <string>

#include "terrace/core/dtype.h"
#include "terrace/device/device.h"
#include "terrace/kernels/op_args.h"

namespace terrace::kernels {

/// The operations that models are made of, on one kind of device: one table, handed down from
/// `main`. Each call only enqueues on `stream`; its arguments must be valid, and its memory alive,
/// until the stream has passed it. Nothing is allocated: an operation with a sizing function
/// (`x_scratch_bytes`, of which the pointers are ignored and the shapes count) works in the
/// `scratch` of its arguments, 64-byte aligned and free for others afterwards; a sizing function
/// also prepares what the shape needs, so a shape that was sized before costs nothing at its first
/// use.
///
/// Results are a function of inputs and shapes alone: not of alignment, addresses, tiles, the
/// number of threads (unless `description` says so) or what ran before. Sums are taken in FP32 or
/// better and rounded once, to nearest even. dtype of activations and weights: f32 or bf16, one for
/// all operands of a call unless stated; weight gradients and statistics are FP32.
///
/// Thread-compatible: calls from several threads need different streams and an outer lock.
/// Errors: usage, naming the operation and the argument, for shapes and dtypes it cannot do.
class Ops {
 public:
  virtual ~Ops() = default;

  /// One line for tables and records: device, instruction sets, libraries and their versions,
  /// threads, and what is used instead of what is missing.
  [[nodiscard]] virtual std::string description() const = 0;
  /// Whether matrix products in `dtype` run on the device's own instructions for it.
  [[nodiscard]] virtual bool native(DType dtype) const = 0;

  virtual void matmul(device::Stream& stream, const MatmulArgs& args) = 0;
  [[nodiscard]] virtual std::uint64_t matmul_scratch_bytes(const MatmulArgs& args) = 0;
  virtual void bias_gradient(device::Stream& stream, const BiasGradientArgs& args) = 0;
  [[nodiscard]] virtual std::uint64_t bias_gradient_scratch_bytes(const BiasGradientArgs& args) = 0;

  virtual void embedding_forward(device::Stream& stream, const EmbeddingArgs& args) = 0;
  virtual void embedding_backward(device::Stream& stream, const EmbeddingBackwardArgs& args) = 0;
  [[nodiscard]] virtual std::uint64_t embedding_backward_scratch_bytes(
      const EmbeddingBackwardArgs& args) = 0;

  virtual void norm_forward(device::Stream& stream, const NormArgs& args) = 0;
  virtual void norm_backward(device::Stream& stream, const NormBackwardArgs& args) = 0;
  [[nodiscard]] virtual std::uint64_t norm_backward_scratch_bytes(const NormBackwardArgs& args) = 0;

  virtual void rotary(device::Stream& stream, const RotaryArgs& args) = 0;

  virtual void attention_forward(device::Stream& stream, const AttentionArgs& args) = 0;
  [[nodiscard]] virtual std::uint64_t attention_forward_scratch_bytes(
      const AttentionArgs& args) = 0;
  virtual void attention_backward(device::Stream& stream, const AttentionBackwardArgs& args) = 0;
  [[nodiscard]] virtual std::uint64_t attention_backward_scratch_bytes(
      const AttentionBackwardArgs& args) = 0;

  virtual void swiglu_forward(device::Stream& stream, const SwigluArgs& args) = 0;
  virtual void swiglu_backward(device::Stream& stream, const SwigluBackwardArgs& args) = 0;
  virtual void gelu_forward(device::Stream& stream, const GeluArgs& args) = 0;
  virtual void gelu_backward(device::Stream& stream, const GeluBackwardArgs& args) = 0;
  virtual void add(device::Stream& stream, const AddArgs& args) = 0;

  virtual void cross_entropy(device::Stream& stream, const CrossEntropyArgs& args) = 0;
  /// The sum of `count` FP32 values as one double at `sum`, by a fixed tree.
  virtual void sum_f64(device::Stream& stream, device::Pointer values, std::int64_t count,
                       device::Pointer sum) = 0;

  virtual void gather_rows(device::Stream& stream, const GatherRowsArgs& args) = 0;
  /// `target` = `source` elementwise, f32 and bf16 either way, to nearest even.
  virtual void convert(device::Stream& stream, View target, View source, std::int64_t count) = 0;
  /// Fills with zero bytes.
  virtual void clear(device::Stream& stream, device::Pointer target, std::uint64_t bytes) = 0;
};

}  // namespace terrace::kernels
