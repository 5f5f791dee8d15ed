#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "terrace/core/log.h"
#include "terrace/device/device.h"
#include "terrace/kernels/ops.h"
#include "terrace/model/model.h"

namespace terrace::model {

/// Rows of tokens, and the target of each: [B][T].
struct HostBatch {
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::vector<std::int32_t>> targets;
  [[nodiscard]] BatchShape shape() const {
    return {static_cast<std::int64_t>(tokens.size()),
            static_cast<std::int64_t>(tokens.front().size())};
  }
};

/// Tokens and targets at random, every fifth target -1.
[[nodiscard]] HostBatch random_batch(BatchShape shape, std::int64_t vocabulary, std::uint64_t seed);

/// Device memory that notices when more of it is used than was asked for.
class GuardedMemory {
 public:
  GuardedMemory(device::Device& device, std::uint64_t bytes);
  [[nodiscard]] device::Pointer pointer() const { return buffer_.pointer(); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// Fills it with NaNs, so that reading before writing shows.
  void poison() const;
  [[nodiscard]] bool guard_intact() const;

 private:
  std::uint64_t bytes_;
  device::Buffer buffer_;
};

struct StepOptions {
  bool recompute = false;   ///< forward runs again before each block's backward
  bool accumulate = false;  ///< gradients are added to what is there; else that is poisoned first
  float loss_scale = 1;
};

/// A whole model on the host device with exactly the memory that it asks for: what an engine does,
/// without moving anything. Every call checks the guards and poisons scratch.
class Rig {
 public:
  /// How parameters lie in memory, and gradients: each guarded by itself, or one behind the other.
  enum class Placement { apart, end_to_end };
  Rig(const Config& config, DType compute, BatchShape shape, int threads = 1,
      Placement placement = Placement::apart);

  [[nodiscard]] const Model& model() const { return *model_; }
  /// The weights as the model sees them: rounded to the compute dtype.
  [[nodiscard]] const std::vector<std::vector<float>>& weights() const { return weights_; }
  void set_weights(const std::vector<std::vector<float>>& weights);
  /// Weights large enough that every term of every gradient counts.
  void randomize(std::uint64_t seed);
  /// For the reference.
  [[nodiscard]] std::map<std::string, std::vector<double>> named_weights() const;

  /// Forward and backward of the batch; the sum of the losses.
  double step(const HostBatch& batch, const StepOptions& options = {});
  /// Forward alone.
  double loss(const HostBatch& batch);
  /// Logits of these positions (numbers of rows of [N, C]), each [V].
  std::vector<std::vector<float>> logits(const HostBatch& batch,
                                         const std::vector<std::int32_t>& positions);
  /// By parameter.
  [[nodiscard]] std::vector<std::vector<float>> gradients() const;

 private:
  [[nodiscard]] std::vector<kernels::View> unit_weights(int unit) const;
  [[nodiscard]] std::vector<GradientView> unit_gradients(int unit, bool accumulate,
                                                         std::vector<bool>& written) const;
  [[nodiscard]] UnitActivations activations(int unit, bool shared_saved) const;
  void place_parameters(Placement placement);
  Batch upload(const HostBatch& batch);
  void forward_units(const Batch& batch, bool recompute);
  void forward_unit(int unit, const Batch& batch, bool recompute);
  void finish();

  DType compute_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<kernels::Ops> ops_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<device::Stream> stream_;
  int head_;
  std::vector<std::vector<float>> weights_;
  std::vector<GuardedMemory> device_weights_, device_gradients_, boundaries_, saved_;
  std::vector<device::Pointer> weight_at_, gradient_at_;  ///< by parameter
  std::unique_ptr<GuardedMemory> shared_saved_, scratch_, d_boundary_, tokens_, targets_, loss_;
};

}  // namespace terrace::model
