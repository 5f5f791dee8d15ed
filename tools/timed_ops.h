#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "terrace/kernels/ops.h"

namespace terrace::tools {

/// What one kind of operation took, summed over its calls.
struct OperationTime {
  std::string_view name;  ///< "matmul forward", "attention backward", ...
  double seconds = 0;
  double flops = 0;  ///< multiplications and additions of matrix products and attention, else 0
  std::int64_t calls = 0;
};

/// One matrix product by its shape and layout, summed over its calls.
struct ProductTime {
  kernels::MatmulArgs args;  ///< of one of the calls
  double seconds = 0;
  std::int64_t calls = 0;
};

/// Another table of operations with a clock read in stream order before and after each of them, so
/// that a step can be split by operation. One stream at a time.
class TimedOps final : public kernels::Ops {
 public:
  explicit TimedOps(kernels::Ops& inner) : inner_(inner) {}

  /// Forgets what was measured. The stream must be idle for this and for `times`.
  void restart();
  /// Operations that were called, longest first.
  [[nodiscard]] std::vector<OperationTime> times() const;
  /// Whether two calls have one size, layout, dtypes and summands.
  [[nodiscard]] static bool same_product(const kernels::MatmulArgs& a,
                                         const kernels::MatmulArgs& b);
  /// Matrix products, longest first; calls that are the `same_product` are one.
  [[nodiscard]] std::vector<ProductTime> products() const;

  [[nodiscard]] std::string description() const override { return inner_.description(); }
  [[nodiscard]] bool native(DType dtype) const override { return inner_.native(dtype); }

  void matmul(device::Stream& stream, const kernels::MatmulArgs& args) override;
  [[nodiscard]] std::uint64_t matmul_scratch_bytes(const kernels::MatmulArgs& args) override {
    return inner_.matmul_scratch_bytes(args);
  }
  void bias_gradient(device::Stream& stream, const kernels::BiasGradientArgs& args) override;
  [[nodiscard]] std::uint64_t bias_gradient_scratch_bytes(
      const kernels::BiasGradientArgs& args) override {
    return inner_.bias_gradient_scratch_bytes(args);
  }
  void embedding_forward(device::Stream& stream, const kernels::EmbeddingArgs& args) override;
  void embedding_backward(device::Stream& stream,
                          const kernels::EmbeddingBackwardArgs& args) override;
  [[nodiscard]] std::uint64_t embedding_backward_scratch_bytes(
      const kernels::EmbeddingBackwardArgs& args) override {
    return inner_.embedding_backward_scratch_bytes(args);
  }
  void norm_forward(device::Stream& stream, const kernels::NormArgs& args) override;
  void norm_backward(device::Stream& stream, const kernels::NormBackwardArgs& args) override;
  [[nodiscard]] std::uint64_t norm_backward_scratch_bytes(
      const kernels::NormBackwardArgs& args) override {
    return inner_.norm_backward_scratch_bytes(args);
  }
  void rotary(device::Stream& stream, const kernels::RotaryArgs& args) override;
  void attention_forward(device::Stream& stream, const kernels::AttentionArgs& args) override;
  [[nodiscard]] std::uint64_t attention_forward_scratch_bytes(
      const kernels::AttentionArgs& args) override {
    return inner_.attention_forward_scratch_bytes(args);
  }
  void attention_backward(device::Stream& stream,
                          const kernels::AttentionBackwardArgs& args) override;
  [[nodiscard]] std::uint64_t attention_backward_scratch_bytes(
      const kernels::AttentionBackwardArgs& args) override {
    return inner_.attention_backward_scratch_bytes(args);
  }
  void swiglu_forward(device::Stream& stream, const kernels::SwigluArgs& args) override;
  void swiglu_backward(device::Stream& stream, const kernels::SwigluBackwardArgs& args) override;
  void gelu_forward(device::Stream& stream, const kernels::GeluArgs& args) override;
  void gelu_backward(device::Stream& stream, const kernels::GeluBackwardArgs& args) override;
  void add(device::Stream& stream, const kernels::AddArgs& args) override;
  void cross_entropy(device::Stream& stream, const kernels::CrossEntropyArgs& args) override;
  void sum_f64(device::Stream& stream, device::Pointer values, std::int64_t count,
               device::Pointer sum) override;
  void gather_rows(device::Stream& stream, const kernels::GatherRowsArgs& args) override;
  void convert(device::Stream& stream, kernels::View target, kernels::View source,
               std::int64_t count) override;
  void clear(device::Stream& stream, device::Pointer target, std::uint64_t bytes) override;

 private:
  enum class Kind : std::size_t {
    matmul,
    matmul_weight_gradient,
    bias_gradient,
    embedding,
    embedding_backward,
    norm,
    norm_backward,
    rotary,
    attention,
    attention_backward,
    swiglu,
    swiglu_backward,
    gelu,
    gelu_backward,
    add,
    cross_entropy,
    other,
    count
  };
  static std::string_view name_of_kind(Kind kind);

  template <class Enqueue>
  void timed(device::Stream& stream, Kind kind, double flops, const Enqueue& enqueue);
  void finish(Kind kind, double seconds, double flops);
  std::size_t index_of(const kernels::MatmulArgs& args);

  kernels::Ops& inner_;
  std::array<OperationTime, static_cast<std::size_t>(Kind::count)> times_{};
  std::vector<ProductTime> products_;
  std::int64_t began_us_ = 0;  ///< of the operation that the stream is in
};

}  // namespace terrace::tools
