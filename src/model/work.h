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

  /// The operation, with scratch that is free again for the next one, which the stream runs after
  /// this one.
  template <class Args>
  void run(Args args) {
    const std::uint64_t mark = scratch_.used();
    if constexpr (kernels::WithScratch<Args>) {
      args.scratch = scratch_.bytes(ops_.scratch_bytes(args));
    }
    if (stream_ != nullptr) ops_.run(*stream_, args);
    scratch_.rewind(mark);
  }

  void matmul(const kernels::MatmulArgs& args) { run(args); }
  void bias_gradient(const kernels::BiasGradientArgs& args) { run(args); }
  void embedding_forward(const kernels::EmbeddingArgs& args) { run(args); }
  void embedding_backward(const kernels::EmbeddingBackwardArgs& args) { run(args); }
  void norm_forward(const kernels::NormArgs& args) { run(args); }
  void norm_backward(const kernels::NormBackwardArgs& args) { run(args); }
  void rotary(const kernels::RotaryArgs& args) { run(args); }
  void attention_forward(const kernels::AttentionArgs& args) { run(args); }
  void attention_backward(const kernels::AttentionBackwardArgs& args) { run(args); }
  void swiglu_forward(const kernels::SwigluArgs& args) { run(args); }
  void swiglu_backward(const kernels::SwigluBackwardArgs& args) { run(args); }
  void gelu_forward(const kernels::GeluArgs& args) { run(args); }
  void gelu_backward(const kernels::GeluBackwardArgs& args) { run(args); }
  void cross_entropy(const kernels::CrossEntropyArgs& args) { run(args); }
  void gather_rows(const kernels::GatherRowsArgs& args) { run(args); }
  void sum_f64(device::Pointer values, std::int64_t count, device::Pointer sum) {
    run(kernels::SumArgs{count, values, sum});
  }

 private:
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
