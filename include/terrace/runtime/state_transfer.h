#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "terrace/checkpoint/state.h"
#include "terrace/core/workers.h"
#include "terrace/device/inline_stream.h"
#include "terrace/io/page_channel.h"
#include "terrace/model/model.h"
#include "terrace/optim/state_format.h"
#include "terrace/plan/plan.h"
#include "terrace/runtime/run_context.h"
#include "terrace/shard/layout.h"

namespace terrace::runtime {

/// Moves whole state between a run's tiers and checkpoints, chunk by chunk through the plan's
/// transfer memory, while no step is under way. As a source it gives what a checkpoint stores:
/// masters and moments by tensor name, in FP32, wherever they lie. Single-owner.
class StateTransfer final : public checkpoint::StateSource {
 public:
  StateTransfer(const RunContext& context, const optim::StateFormat& format);

  /// Fills all state from `source` (asked for master and, with `moments`, exp_avg and exp_avg_sq;
  /// they start at zero otherwise) and the parameters from the masters.
  void load(checkpoint::StateSource& source, bool moments, const ProgressFunction& progress = {});

  /// Fills the parameters from the masters that the store has; all masters are on disk. Returns
  /// whether the compute type holds all that were read: those of parameters in the store are not.
  [[nodiscard]] bool load_parameters_from_store(const ProgressFunction& progress = {});

  void read(StateKind kind, const std::string& tensor, std::int64_t first,
            std::span<float> values) override;
  /// Forgets what was read of the store and the device; call it after steps have run.
  void forget() { cached_.assign(cached_.size(), -1); }

 private:
  /// The transfer memory's parts: one a state kind, then these two.
  [[nodiscard]] std::span<std::byte> part(std::size_t index, std::uint64_t bytes) const;
  [[nodiscard]] std::size_t parameter_part() const { return context_.plan.request.state.size(); }
  [[nodiscard]] std::span<float> floats(std::int64_t count) const;

  [[nodiscard]] memory::Tier tier_of(const plan::Place& place) const {
    return context_.plan.memory.region(place.region).tier;
  }
  /// A chunk's bytes at `place`: there, or the part of the transfer memory through which they go to
  /// and from the device or the disk (read from there with `fetch`).
  [[nodiscard]] std::span<std::byte> host_bytes(const plan::Place& place, std::size_t index,
                                                std::uint64_t bytes, int chunk, bool fetch);
  [[nodiscard]] std::span<std::byte> state_bytes(int chunk, std::size_t kind, bool fetch);
  [[nodiscard]] std::span<std::byte> parameter_bytes(int chunk, bool fetch);
  /// Fills a part of the transfer memory from the device or the disk.
  void fetch(const plan::Place& place, std::span<std::byte> target);
  /// Copies a part of the transfer memory to the device or the disk; nothing for the host's own.
  void store(const plan::Place& place, std::span<const std::byte> source);
  void run(const kernels::OptimizerOp& op) { context_.optimizer_ops.run(*host_stream_, op); }

  void read_chunk_values(checkpoint::StateSource& source, StateKind kind, const plan::Chunk& chunk,
                         std::span<float> values) const;
  void encode(std::size_t kind, std::span<const float> values, std::span<std::byte> state,
              std::span<std::byte> parameter);
  void narrow(std::span<const float> values, std::span<std::byte> parameter);
  void decode(int chunk, std::size_t kind, std::int64_t first, std::span<float> values);

  RunContext context_;
  optim::StateFormat format_;
  std::unique_ptr<io::PageChannel> channel_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<device::Stream> host_stream_ = device::make_inline_stream();
  std::unordered_map<std::string, int> parameter_by_name_;
  std::vector<int> first_chunk_;  ///< [flat]
  std::vector<int> cached_;       ///< [part]: the chunk whose page it holds, -1: none
};

/// The state that a new model starts from: its initial values, moments of zero. The values are
/// drawn by all `workers`, which outlive it. Single-owner.
class InitialState final : public checkpoint::StateSource {
 public:
  InitialState(const model::Model& model, std::uint64_t seed, Workers& workers);
  void read(StateKind kind, const std::string& tensor, std::int64_t first,
            std::span<float> values) override;

 private:
  const model::Model& model_;
  std::uint64_t seed_;
  Workers& workers_;
  std::unordered_map<std::string, int> parameter_by_name_;
};

}  // namespace terrace::runtime
