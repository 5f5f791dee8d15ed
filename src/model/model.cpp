#include "terrace/model/model.h"

#include <algorithm>
#include <optional>

#include "head.h"
#include "parameters.h"
#include "terrace/core/error.h"
#include "terrace/core/random.h"
#include "unit.h"

namespace terrace::model {
namespace {

/// Keys the initial values among the uses of random numbers: "init" in ASCII.
constexpr std::uint64_t kInitialValues = 0x696e6974;

std::int64_t matrix_elements(const Inventory& inventory, const UnitSpec& unit) {
  std::int64_t elements = 0;
  for (const int index : unit.parameters) {
    const ParameterSpec& parameter = inventory.parameters[static_cast<std::size_t>(index)];
    if (parameter.is_matrix) elements += parameter.elements();
  }
  return elements;
}

}  // namespace

std::int64_t ParameterSpec::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

struct Model::Impl {
  Impl(const Config& config_in, DType compute_in, kernels::Ops& ops_in)
      : config(config_in),
        compute(compute_in),
        ops(ops_in),
        inventory(take_inventory(config)),
        embedding(make_embedding(config, compute)),
        block(config.architecture == Architecture::gpt2 ? make_gpt2_block(config, compute)
                                                        : make_llama_block(config, compute)),
        head(config, compute) {}

  [[nodiscard]] const UnitSpec& spec(int unit) const {
    require(unit >= 0 && static_cast<std::size_t>(unit) < inventory.units.size(),
            ErrorKind::internal, "unit {} was asked of a model of {} units", unit,
            inventory.units.size());
    return inventory.units[static_cast<std::size_t>(unit)];
  }

  /// The embedding or a block; all blocks are computed alike.
  [[nodiscard]] const Unit& unit_at(int unit) const {
    const UnitSpec& found = spec(unit);
    require(found.kind != UnitKind::head, ErrorKind::internal,
            "the head was asked for a pass that only the embedding and blocks have");
    return found.kind == UnitKind::embedding ? *embedding : *block;
  }

  void check_shape(BatchShape shape) const {
    require(shape.rows >= 1 && shape.sequence >= 1, ErrorKind::usage,
            "a micro-batch of {} rows of {} tokens was given, but both must be at least 1",
            shape.rows, shape.sequence);
    require(config.architecture != Architecture::gpt2 ||
                shape.sequence <= config.max_position_embeddings,
            ErrorKind::usage,
            "a sequence of {} tokens does not fit the model's n_positions ({}); make it shorter",
            shape.sequence, config.max_position_embeddings);
  }

  /// A pass that reads no weights.
  [[nodiscard]] Pass make_pass(const Batch& batch, const UnitActivations& activations) const {
    check_shape(batch.shape);
    return {.shape = batch.shape,
            .tokens = batch.tokens.data(),
            .targets = batch.targets.data(),
            .weights = {},
            .gradients = {},
            .activations = activations,
            .d_boundary = {}};
  }

  [[nodiscard]] Pass make_pass(int unit, std::span<const kernels::View> weights, const Batch& batch,
                               const UnitActivations& activations) const {
    const UnitSpec& found = spec(unit);
    require(weights.size() == found.parameters.size(), ErrorKind::internal,
            "{} was given {} weights, but has {}", found.name, weights.size(),
            found.parameters.size());
    for (const kernels::View& weight : weights) {
      require(weight.dtype == compute, ErrorKind::internal,
              "{} was given a weight in {}, but computes in {}", found.name, name_of(weight.dtype),
              name_of(compute));
    }
    Pass pass = make_pass(batch, activations);
    pass.weights = weights;
    return pass;
  }

  void check_gradients(int unit, std::span<const GradientView> gradients) const {
    const UnitSpec& found = spec(unit);
    require(gradients.size() == found.parameters.size(), ErrorKind::internal,
            "{} was given {} gradients, but has {} parameters", found.name, gradients.size(),
            found.parameters.size());
  }

  /// Addresses for a unit's parameters or gradients that are never touched: all the same one, or
  /// one tensor behind the other.
  [[nodiscard]] std::vector<kernels::View> pretended(const UnitSpec& unit, DType dtype,
                                                     bool end_to_end) const {
    std::vector<kernels::View> views;
    kernels::View next{nowhere(), dtype};
    for (const int parameter : unit.parameters) {
      views.push_back(next);
      const auto& spec = inventory.parameters[static_cast<std::size_t>(parameter)];
      if (end_to_end) next = next.offset(spec.elements());
    }
    return views;
  }

  [[nodiscard]] int head_unit() const { return static_cast<int>(inventory.units.size()) - 1; }

  Config config;
  DType compute;
  kernels::Ops& ops;
  Inventory inventory;
  std::unique_ptr<Unit> embedding;
  std::unique_ptr<Unit> block;
  Head head;
};

Model::Model(const Config& config, DType compute, kernels::Ops& ops) {
  validate(config, "the model's configuration");
  require(compute == DType::f32 || compute == DType::bf16, ErrorKind::usage,
          "the compute dtype is {}, but must be fp32 or bf16", name_of(compute));
  impl_ = std::make_unique<Impl>(config, compute, ops);
}

Model::~Model() = default;

const Config& Model::config() const { return impl_->config; }
DType Model::compute_dtype() const { return impl_->compute; }
std::span<const ParameterSpec> Model::parameters() const { return impl_->inventory.parameters; }
std::span<const UnitSpec> Model::units() const { return impl_->inventory.units; }

std::int64_t Model::parameter_count() const {
  std::int64_t count = 0;
  for (const ParameterSpec& parameter : impl_->inventory.parameters) count += parameter.elements();
  return count;
}

UnitMemory Model::memory(int unit, BatchShape shape) const {
  const UnitSpec& found = impl_->spec(unit);
  const Batch batch{shape, {nowhere(), 0}, {nowhere(), 0}};
  const UnitActivations activations{nowhere(), nowhere(), nowhere(), nowhere()};

  // Whether weights stand end to end, and whether a gradient is written or added to, makes other
  // products of the operations: all are prepared.
  const auto measured = [&](auto&& call) {
    std::uint64_t peak = 0;
    for (const bool end_to_end : {false, true}) {
      const std::vector<kernels::View> weights =
          impl_->pretended(found, impl_->compute, end_to_end);
      for (const bool accumulate : {false, true}) {
        std::vector<GradientView> gradients;
        for (const kernels::View& values : impl_->pretended(found, DType::f32, end_to_end)) {
          gradients.push_back({values, accumulate});
        }
        Pass pass = impl_->make_pass(unit, weights, batch, activations);
        pass.gradients = gradients;
        pass.d_boundary = nowhere();
        Work work(impl_->ops);
        call(work, pass);
        peak = std::max(peak, work.scratch().peak());
      }
    }
    return peak;
  };

  UnitMemory memory;
  if (found.kind == UnitKind::head) {
    const Head& head = impl_->head;
    memory.backward_scratch_bytes = measured(
        [&](Work& work, const Pass& pass) { head.forward_backward(work, pass, 1, nowhere()); });
    memory.forward_scratch_bytes =
        measured([&](Work& work, const Pass& pass) { head.loss(work, pass, nowhere()); });
    for (const std::int64_t rows : {std::int64_t{1}, shape.rows}) {
      const std::uint64_t bytes = measured([&](Work& work, const Pass& pass) {
        head.logits(work, pass, {nowhere(), static_cast<std::size_t>(rows)}, nowhere());
      });
      memory.forward_scratch_bytes = std::max(memory.forward_scratch_bytes, bytes);
    }
    return memory;
  }
  const Unit& part = impl_->unit_at(unit);
  memory.boundary_bytes = static_cast<std::uint64_t>(shape.tokens()) *
                          static_cast<std::uint64_t>(impl_->config.hidden_size) *
                          size_of(impl_->compute);
  memory.saved_bytes = part.saved_bytes(shape);
  memory.forward_scratch_bytes =
      measured([&](Work& work, const Pass& pass) { part.forward(work, pass); });
  memory.backward_scratch_bytes =
      measured([&](Work& work, const Pass& pass) { part.backward(work, pass); });
  return memory;
}

/// Products with weights, two operations an element and token, and the causal half of attention's
/// two products. What is not a product is not counted.
double Model::forward_flops(int unit, BatchShape shape) const {
  const UnitSpec& found = impl_->spec(unit);
  if (found.kind == UnitKind::embedding) return 0;
  const auto tokens = static_cast<double>(shape.tokens());
  double flops = 2 * tokens * static_cast<double>(matrix_elements(impl_->inventory, found));
  if (found.kind == UnitKind::block) {
    flops += 2 * tokens * static_cast<double>(shape.sequence) *
             static_cast<double>(impl_->config.num_attention_heads * impl_->config.head_dim);
  }
  return flops;
}

void Model::initial_values(int parameter, std::uint64_t seed, std::int64_t first,
                           std::span<float> values) const {
  const ParameterSpec& spec = impl_->inventory.parameters.at(static_cast<std::size_t>(parameter));
  require(first >= 0 && first + static_cast<std::int64_t>(values.size()) <= spec.elements(),
          ErrorKind::internal, "{} has {} elements, but {} from {} on were asked for", spec.name,
          spec.elements(), values.size(), first);
  if (spec.initial != Initial::normal) {
    std::fill(values.begin(), values.end(), spec.initial == Initial::ones ? 1.0F : 0.0F);
    return;
  }
  const RandomStream random(seed, (kInitialValues << 32) | static_cast<std::uint64_t>(parameter));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double normal = random.normal(static_cast<std::uint64_t>(first) + i);
    values[i] = static_cast<float>(spec.initial_std * normal);
  }
}

void Model::forward(device::Stream& stream, int unit, std::span<const kernels::View> weights,
                    const Batch& batch, const UnitActivations& activations) const {
  Work work(impl_->ops, stream, activations.scratch);
  impl_->unit_at(unit).forward(work, impl_->make_pass(unit, weights, batch, activations));
}

bool Model::backward_reads_weights(int unit) const {
  return impl_->spec(unit).kind != UnitKind::embedding;
}

void Model::backward(device::Stream& stream, int unit, std::span<const kernels::View> weights,
                     const Batch& batch, const UnitActivations& activations,
                     device::Pointer d_boundary, std::span<const GradientView> gradients) const {
  Work work(impl_->ops, stream, activations.scratch);
  const bool has_none = weights.empty() && !backward_reads_weights(unit);
  Pass pass = has_none ? impl_->make_pass(batch, activations)
                       : impl_->make_pass(unit, weights, batch, activations);
  impl_->check_gradients(unit, gradients);
  pass.gradients = gradients;
  pass.d_boundary = d_boundary;
  impl_->unit_at(unit).backward(work, pass);
}

void Model::head_forward_backward(device::Stream& stream, std::span<const kernels::View> weights,
                                  const Batch& batch, const UnitActivations& activations,
                                  float loss_scale, device::Pointer d_boundary,
                                  std::span<const GradientView> gradients,
                                  device::Pointer loss_sum) const {
  Work work(impl_->ops, stream, activations.scratch);
  Pass pass = impl_->make_pass(impl_->head_unit(), weights, batch, activations);
  impl_->check_gradients(impl_->head_unit(), gradients);
  pass.gradients = gradients;
  pass.d_boundary = d_boundary;
  impl_->head.forward_backward(work, pass, loss_scale, loss_sum);
}

void Model::head_loss(device::Stream& stream, std::span<const kernels::View> weights,
                      const Batch& batch, const UnitActivations& activations,
                      device::Pointer loss_sum) const {
  Work work(impl_->ops, stream, activations.scratch);
  const Pass pass = impl_->make_pass(impl_->head_unit(), weights, batch, activations);
  impl_->head.loss(work, pass, loss_sum);
}

void Model::head_logits(device::Stream& stream, std::span<const kernels::View> weights,
                        const Batch& batch, const UnitActivations& activations,
                        device::Span<std::int32_t> positions, device::Pointer logits) const {
  Work work(impl_->ops, stream, activations.scratch);
  const Pass pass = impl_->make_pass(impl_->head_unit(), weights, batch, activations);
  require(positions.size() <= static_cast<std::size_t>(batch.shape.rows), ErrorKind::internal,
          "logits of {} positions were asked for, but scratch is planned for {}", positions.size(),
          batch.shape.rows);
  impl_->head.logits(work, pass, positions, logits);
}

}  // namespace terrace::model
