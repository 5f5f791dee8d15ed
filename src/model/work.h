#pragma once

#include <cstdint>

#include "carver.h"
#include "terrace/device/device.h"
#include "terrace/kernels/ops.h"
#include "terrace/model/model.h"

namespace terrace::model {

/// One call on one unit: where it enqueues and where its scratch lies. Made without a stream it
/// enqueues nothing and only takes scratch, so that a unit's memory is worked out by the very code
/// that uses it (and the operations prepare their shapes meanwhile).
class Work {
 public:
  Work(kernels::Ops& ops, device::Stream& stream, device::Pointer scratch)
      : ops_(ops), stream_(&stream), scratch_(scratch) {}
  /// Measures only.
  explicit Work(kernels::Ops& ops) : ops_(ops), scratch_(nowhere()) {}
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  [[nodiscard]] Carver& scratch() { return scratch_; }

  void matmul(kernels::MatmulArgs args) {
    run(args, &kernels::Ops::matmul, &kernels::Ops::matmul_scratch_bytes);
  }
  void bias_gradient(kernels::BiasGradientArgs args) {
    run(args, &kernels::Ops::bias_gradient, &kernels::Ops::bias_gradient_scratch_bytes);
  }
  void embedding_forward(const kernels::EmbeddingArgs& args) {
    run(args, &kernels::Ops::embedding_forward);
  }
  void embedding_backward(kernels::EmbeddingBackwardArgs args) {
    run(args, &kernels::Ops::embedding_backward, &kernels::Ops::embedding_backward_scratch_bytes);
  }
  void norm_forward(const kernels::NormArgs& args) { run(args, &kernels::Ops::norm_forward); }
  void norm_backward(kernels::NormBackwardArgs args) {
    run(args, &kernels::Ops::norm_backward, &kernels::Ops::norm_backward_scratch_bytes);
  }
  void rotary(const kernels::RotaryArgs& args) { run(args, &kernels::Ops::rotary); }
  void attention_forward(kernels::AttentionArgs args) {
    run(args, &kernels::Ops::attention_forward, &kernels::Ops::attention_forward_scratch_bytes);
  }
  /// `args.forward.scratch` is set here.
  void attention_backward(kernels::AttentionBackwardArgs args) {
    const std::uint64_t mark = scratch_.used();
    args.forward.scratch = scratch_.bytes(ops_.attention_backward_scratch_bytes(args));
    run(args, &kernels::Ops::attention_backward);
    scratch_.rewind(mark);
  }
  void swiglu_forward(const kernels::SwigluArgs& args) { run(args, &kernels::Ops::swiglu_forward); }
  void swiglu_backward(const kernels::SwigluBackwardArgs& args) {
    run(args, &kernels::Ops::swiglu_backward);
  }
  void gelu_forward(const kernels::GeluArgs& args) { run(args, &kernels::Ops::gelu_forward); }
  void gelu_backward(const kernels::GeluBackwardArgs& args) {
    run(args, &kernels::Ops::gelu_backward);
  }
  void cross_entropy(const kernels::CrossEntropyArgs& args) {
    run(args, &kernels::Ops::cross_entropy);
  }
  void gather_rows(const kernels::GatherRowsArgs& args) { run(args, &kernels::Ops::gather_rows); }
  void sum_f64(device::Pointer values, std::int64_t count, device::Pointer sum) {
    if (stream_ != nullptr) ops_.sum_f64(*stream_, values, count, sum);
  }

 private:
  template <class Args>
  void run(const Args& args, void (kernels::Ops::*operation)(device::Stream&, const Args&)) {
    if (stream_ != nullptr) (ops_.*operation)(*stream_, args);
  }
  /// The scratch is free again for the next operation, which the stream runs after this one.
  template <class Args>
  void run(Args& args, void (kernels::Ops::*operation)(device::Stream&, const Args&),
           std::uint64_t (kernels::Ops::*scratch_bytes)(const Args&)) {
    const std::uint64_t mark = scratch_.used();
    args.scratch = scratch_.bytes((ops_.*scratch_bytes)(args));
    run(args, operation);
    scratch_.rewind(mark);
  }

  kernels::Ops& ops_;
  device::Stream* stream_ = nullptr;
  Carver scratch_;
};

/// What a unit is handed for one pass. Shapes as in model.h.
struct Pass {
  BatchShape shape;
  device::Pointer tokens;   ///< int32 [B, T]
  device::Pointer targets;  ///< int32 [B, T]
  std::span<const kernels::View> weights;
  std::span<const GradientView> gradients;  ///< backward only
  UnitActivations activations;
  device::Pointer d_boundary;  ///< [N, C], backward only
};

}  // namespace terrace::model
