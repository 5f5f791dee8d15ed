#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "terrace/core/dtype.h"
#include "terrace/device/device.h"
#include "terrace/kernels/ops.h"
#include "terrace/model/config.h"

// Shapes: B rows of a micro-batch, T tokens a row, N = B*T, C hidden size, V vocabulary.

namespace terrace::model {

/// What a parameter starts as when a model is made from its shape.
enum class Initial { normal, ones, zeros };

struct ParameterSpec {
  std::string name;  ///< as in the architecture's Hugging Face folder
  std::vector<std::int64_t> shape;
  bool is_matrix = false;  ///< weight decay applies to matrices, not to norms and biases
  Initial initial = Initial::normal;
  float initial_std = 0;

  [[nodiscard]] std::int64_t elements() const;
};

enum class UnitKind { embedding, block, head };

/// What is fetched, computed and released together.
struct UnitSpec {
  UnitKind kind = UnitKind::block;
  std::string name;  ///< "embedding", "block 7", "head"
  /// Indices into `Model::parameters`. A tied weight appears in each unit that uses it.
  std::vector<int> parameters;
};

/// The shape of one micro-batch.
struct BatchShape {
  std::int64_t rows = 1;      ///< B
  std::int64_t sequence = 1;  ///< T
  [[nodiscard]] std::int64_t tokens() const { return rows * sequence; }
};

/// Bytes of device memory that one unit needs for a batch shape, all known beforehand.
struct UnitMemory {
  std::uint64_t boundary_bytes = 0;  ///< the unit's output [N, C], compute dtype; 0 for the head
  std::uint64_t saved_bytes = 0;     ///< what forward leaves for backward, the input not counted
  std::uint64_t forward_scratch_bytes = 0;
  std::uint64_t backward_scratch_bytes = 0;
};

/// One micro-batch, in device memory.
struct Batch {
  BatchShape shape;
  device::Span<std::int32_t> tokens;   ///< [B, T]
  device::Span<std::int32_t> targets;  ///< [B, T]; -1 counts for nothing
};

/// A parameter's gradient, FP32, of the parameter's shape. `accumulate` false: what was there is
/// overwritten (and need not be initialised); true: the gradient is added to it.
struct GradientView {
  kernels::View values;
  bool accumulate = false;
};

/// Memory for one call on one unit. All is the caller's, and stays his.
struct UnitActivations {
  device::Pointer input;    ///< [N, C]; unused by the embedding
  device::Pointer output;   ///< [N, C]; unused by the head
  device::Pointer saved;    ///< `saved_bytes`
  device::Pointer scratch;  ///< `forward_scratch_bytes` or `backward_scratch_bytes`
};

/// A transformer as a row of units. It owns no parameters, no activations and no stream, and does
/// not know where they live or that they move: each call gets views. All calls only enqueue on
/// `stream`, in order; memory given to a call must stay valid until the stream has passed it.
/// Results are a function of the inputs and shapes alone, bit for bit; and of whether the weights
/// that meet one input (queries, keys, values; gate, up) stand end to end, as they do in a packed
/// unit: these are then one product.
class Model {
 public:
  /// `compute` is the dtype of parameters and activations: f32 or bf16. `ops` outlives the model.
  /// Errors: usage or data, naming the configuration's key.
  Model(const Config& config, DType compute, kernels::Ops& ops);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  [[nodiscard]] const Config& config() const;
  [[nodiscard]] DType compute_dtype() const;
  [[nodiscard]] std::span<const ParameterSpec> parameters() const;
  /// In forward order: embedding, blocks, head.
  [[nodiscard]] std::span<const UnitSpec> units() const;
  [[nodiscard]] std::int64_t parameter_count() const;

  [[nodiscard]] UnitMemory memory(int unit, BatchShape shape) const;
  /// Floating-point operations of one forward of the unit (a backward is twice that).
  [[nodiscard]] double forward_flops(int unit, BatchShape shape) const;

  /// Whether the unit's backward reads its parameters. The embedding's does not.
  [[nodiscard]] bool backward_reads_weights(int unit) const;

  /// Initial values of elements [first, first + values.size()) of a parameter: a pure function of
  /// (seed, parameter, element), whatever the partition. Host memory, on the calling thread.
  void initial_values(int parameter, std::uint64_t seed, std::int64_t first,
                      std::span<float> values) const;

  /// Forward of the embedding or of a block: `activations.input` to `activations.output`, leaving
  /// in `activations.saved` what backward needs. `weights`: the unit's parameters in its order,
  /// compute dtype.
  void forward(device::Stream& stream, int unit, std::span<const kernels::View> weights,
               const Batch& batch, const UnitActivations& activations) const;

  /// Backward of the embedding or of a block, from what `forward` was given and left; `saved` is
  /// used up, so that another backward needs another forward. `d_boundary` [N, C], compute dtype:
  /// the gradient of the unit's output on entry, of its input on return (in place; the embedding
  /// leaves it as it is). `weights`: as for `forward`, or none where they are not read.
  /// `gradients`: in the unit's order.
  void backward(device::Stream& stream, int unit, std::span<const kernels::View> weights,
                const Batch& batch, const UnitActivations& activations, device::Pointer d_boundary,
                std::span<const GradientView> gradients) const;

  /// Forward and backward of the head in one pass over chunks of tokens, so that the [N, V] logits
  /// never exist. `activations.input` is the last block's output. Writes the sum over the targets
  /// of the negative log likelihood, in nats, as one double to `loss_sum`; the gradient of
  /// (that sum * `loss_scale`) goes to `d_boundary` [N, C] and `gradients`. Uses
  /// `backward_scratch_bytes`.
  void head_forward_backward(device::Stream& stream, std::span<const kernels::View> weights,
                             const Batch& batch, const UnitActivations& activations,
                             float loss_scale, device::Pointer d_boundary,
                             std::span<const GradientView> gradients,
                             device::Pointer loss_sum) const;

  /// The loss alone, as above. Uses `forward_scratch_bytes`.
  void head_loss(device::Stream& stream, std::span<const kernels::View> weights, const Batch& batch,
                 const UnitActivations& activations, device::Pointer loss_sum) const;

  /// Logits of the `rows` positions of `activations.input` that `positions` (row numbers in [0, N),
  /// device memory, int32) names: FP32 [rows, V] into `logits`. rows <= B. Uses
  /// `forward_scratch_bytes`.
  void head_logits(device::Stream& stream, std::span<const kernels::View> weights,
                   const Batch& batch, const UnitActivations& activations,
                   device::Span<std::int32_t> positions, device::Pointer logits) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace::model
