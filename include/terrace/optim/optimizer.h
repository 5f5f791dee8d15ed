#pragma once

#include <cstdint>
#include <vector>

#include "terrace/kernels/optimizer_ops.h"
#include "terrace/optim/state_format.h"

namespace terrace::optim {

using kernels::ChunkSource;
using kernels::ChunkTarget;
using kernels::ChunkViews;

/// The numbers of `optimizer.params`, PyTorch's and DeepSpeed's names and meanings. The learning
/// rate is not one of them: it comes with each step.
struct OptimizerOptions {
  OptimizerType type = OptimizerType::adamw;
  double beta1 = 0.9;    ///< not Adagrad
  double beta2 = 0.999;  ///< not Adagrad; Lion's default is 0.99
  double eps = 1e-8;     ///< not Lion; Adagrad's default is 1e-10
  double weight_decay = 0;
  bool bias_correction = true;  ///< Adam and AdamW

  /// The defaults of that optimizer in DeepSpeed and PyTorch, without decay.
  [[nodiscard]] static OptimizerOptions defaults_of(OptimizerType type);
};

/// What changes from step to step, the same for every chunk but the decay.
struct StepScalars {
  std::int64_t step = 0;  ///< updates done before this one, plus one; skipped steps do not count
  double learning_rate = 0;
  double gradient_scale = 1;  ///< clip factor / loss scale
  double weight_decay = 0;    ///< of this chunk's group; 0 for norms and biases
};

/// How chunks are updated: the recurrence and the formats. It knows nothing of where the spans lie.
/// Immutable, hence thread-safe.
class Optimizer {
 public:
  /// What the chunks look like. `seed` keys the stochastic rounding of bf16 moments.
  struct Formats {
    StateFormat state;
    DType gradient = DType::bf16;
    DType parameter = DType::bf16;
    std::uint64_t seed = 0;
  };

  /// Errors: usage, naming the key, for a value out of its range (betas in [0, 1), eps > 0, decay
  /// >= 0) and for `split` with a parameter that is not bf16.
  Optimizer(const OptimizerOptions& options, const Formats& formats);

  /// The operation that reads `chunk.source` and writes `chunk.target` (in place or out of place,
  /// see `ChunkTarget`). `chunk.source.parameter` is read in `split` only. Bits do not depend on
  /// how a range is cut into chunks.
  [[nodiscard]] kernels::StepArgs step(const ChunkViews& chunk, const StepScalars& scalars) const;

  [[nodiscard]] const OptimizerOptions& options() const { return options_; }
  [[nodiscard]] const Formats& formats() const { return formats_; }
  [[nodiscard]] std::vector<StateEntry> state_entries() const;

  /// The coefficients of a step, each computed in double and rounded once: what the kernels get.
  [[nodiscard]] kernels::Coefficients coefficients(const StepScalars& scalars) const;

 private:
  OptimizerOptions options_;
  Formats formats_;
};

}  // namespace terrace::optim
