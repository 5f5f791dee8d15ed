#include "rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "terrace/core/random.h"
#include "terrace/kernels/cpu.h"

namespace terrace::model {
namespace {

constexpr std::uint64_t kGuardBytes = 256;
constexpr int kGuardByte = 0xa5;
constexpr int kPoisonByte = 0xff;  // NaN in every floating type, -1 as an integer

std::int32_t draw(const RandomStream& random, std::uint64_t index, std::int64_t bound) {
  return static_cast<std::int32_t>(random.below(index, static_cast<std::uint64_t>(bound)));
}

void copy_rows(device::Pointer target, const std::vector<std::vector<std::int32_t>>& rows) {
  auto* to = target.raw<std::int32_t>();
  for (const auto& row : rows) to = std::copy(row.begin(), row.end(), to);
}

}  // namespace

HostBatch random_batch(BatchShape shape, std::int64_t vocabulary, std::uint64_t seed) {
  const RandomStream random(seed, 1);
  HostBatch batch;
  std::uint64_t index = 0;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    std::vector<std::int32_t> tokens, targets;
    for (std::int64_t t = 0; t < shape.sequence; ++t) {
      tokens.push_back(draw(random, index++, vocabulary));
      targets.push_back(index % 5 == 4 ? -1 : draw(random, index, vocabulary));
      ++index;
    }
    batch.tokens.push_back(tokens);
    batch.targets.push_back(targets);
  }
  return batch;
}

GuardedMemory::GuardedMemory(device::Device& device, std::uint64_t bytes)
    : bytes_(bytes), buffer_(device.allocate(bytes + kGuardBytes, "test")) {
  std::memset(pointer().raw() + bytes_, kGuardByte, kGuardBytes);
}

void GuardedMemory::poison() const { std::memset(pointer().raw(), kPoisonByte, bytes_); }

bool GuardedMemory::guard_intact() const {
  const auto* guard = pointer().raw<unsigned char>() + bytes_;
  return std::all_of(guard, guard + kGuardBytes, [](unsigned char b) { return b == kGuardByte; });
}

Rig::Rig(const Config& config, DType compute, BatchShape shape, int threads, Placement placement)
    : compute_(compute),
      device_(device::make_host_device()),
      ops_(kernels::make_cpu_ops({.threads = threads})),
      model_(std::make_unique<Model>(config, compute, *ops_)),
      stream_(device_->make_stream("compute")),
      head_(static_cast<int>(model_->units().size()) - 1) {
  std::uint64_t scratch = 0, most_saved = 0;
  for (int unit = 0; unit <= head_; ++unit) {
    const UnitMemory memory = model_->memory(unit, shape);
    scratch = std::max({scratch, memory.forward_scratch_bytes, memory.backward_scratch_bytes});
    most_saved = std::max(most_saved, memory.saved_bytes);
    boundaries_.emplace_back(*device_, memory.boundary_bytes);
    saved_.emplace_back(*device_, memory.saved_bytes);
  }
  const auto make = [&](std::uint64_t bytes) {
    return std::make_unique<GuardedMemory>(*device_, bytes);
  };
  scratch_ = make(scratch);
  shared_saved_ = make(most_saved);
  d_boundary_ = make(boundaries_.front().bytes());
  tokens_ = make(static_cast<std::uint64_t>(shape.tokens()) * sizeof(std::int32_t));
  targets_ = make(tokens_->bytes());
  loss_ = make(sizeof(double));
  place_parameters(placement);
}

void Rig::place_parameters(Placement placement) {
  const auto place = [&](std::vector<GuardedMemory>& memory, std::vector<device::Pointer>& at,
                         std::uint64_t element_bytes) {
    if (placement == Placement::end_to_end) {
      const auto elements = static_cast<std::uint64_t>(model_->parameter_count());
      memory.emplace_back(*device_, elements * element_bytes);
    }
    std::uint64_t first = 0;
    for (const ParameterSpec& parameter : model_->parameters()) {
      const std::uint64_t bytes = static_cast<std::uint64_t>(parameter.elements()) * element_bytes;
      if (placement == Placement::apart) memory.emplace_back(*device_, bytes);
      at.push_back(memory.back().pointer() + (placement == Placement::apart ? 0 : first));
      first += bytes;
    }
  };
  place(device_weights_, weight_at_, size_of(compute_));
  place(device_gradients_, gradient_at_, sizeof(float));
}

void Rig::set_weights(const std::vector<std::vector<float>>& weights) {
  weights_ = weights;
  for (std::size_t p = 0; p < weights_.size(); ++p) {
    const device::Pointer target = weight_at_[p];
    for (std::size_t i = 0; i < weights_[p].size(); ++i) {
      if (compute_ == DType::f32) {
        target.raw<float>()[i] = weights_[p][i];
      } else {
        const Bf16 rounded = to_bf16(weights_[p][i]);
        target.raw<Bf16>()[i] = rounded;
        weights_[p][i] = to_float(rounded);
      }
    }
  }
}

void Rig::randomize(std::uint64_t seed) {
  std::vector<std::vector<float>> weights;
  for (const ParameterSpec& parameter : model_->parameters()) {
    const RandomStream random(seed, 100 + weights.size());
    const double width = parameter.shape.size() == 2
                             ? 1 / std::sqrt(static_cast<double>(model_->config().hidden_size))
                             : 0.3;
    const double centre = parameter.initial == Initial::ones ? 1 : 0;
    std::vector<float> values;
    for (std::int64_t i = 0; i < parameter.elements(); ++i) {
      const double normal = random.normal(static_cast<std::uint64_t>(i));
      values.push_back(static_cast<float>(centre + width * normal));
    }
    weights.push_back(values);
  }
  set_weights(weights);
}

std::map<std::string, std::vector<double>> Rig::named_weights() const {
  std::map<std::string, std::vector<double>> named;
  for (std::size_t p = 0; p < weights_.size(); ++p) {
    named[model_->parameters()[p].name].assign(weights_[p].begin(), weights_[p].end());
  }
  return named;
}

std::vector<kernels::View> Rig::unit_weights(int unit) const {
  std::vector<kernels::View> views;
  for (const int p : model_->units()[static_cast<std::size_t>(unit)].parameters) {
    views.push_back({weight_at_[static_cast<std::size_t>(p)], compute_});
  }
  return views;
}

/// A gradient that nobody has `written` in this step is overwritten, unless it is to accumulate.
std::vector<GradientView> Rig::unit_gradients(int unit, bool accumulate,
                                              std::vector<bool>& written) const {
  std::vector<GradientView> views;
  for (const int parameter : model_->units()[static_cast<std::size_t>(unit)].parameters) {
    const auto p = static_cast<std::size_t>(parameter);
    views.push_back({{gradient_at_[p], DType::f32}, accumulate || written[p]});
    written[p] = true;
  }
  return views;
}

UnitActivations Rig::activations(int unit, bool shared_saved) const {
  const auto u = static_cast<std::size_t>(unit);
  return {.input = unit == 0 ? device::Pointer() : boundaries_[u - 1].pointer(),
          .output = boundaries_[u].pointer(),
          .saved = shared_saved ? shared_saved_->pointer() : saved_[u].pointer(),
          .scratch = scratch_->pointer()};
}

Batch Rig::upload(const HostBatch& batch) {
  const BatchShape shape = batch.shape();
  copy_rows(tokens_->pointer(), batch.tokens);
  copy_rows(targets_->pointer(), batch.targets);
  const auto n = static_cast<std::size_t>(shape.tokens());
  return {shape, {tokens_->pointer(), n}, {targets_->pointer(), n}};
}

void Rig::forward_unit(int unit, const Batch& batch, bool recompute) {
  const auto poison = [this, unit, recompute] {
    scratch_->poison();
    (recompute ? *shared_saved_ : saved_[static_cast<std::size_t>(unit)]).poison();
  };
  stream_->enqueue(poison);
  model_->forward(*stream_, unit, unit_weights(unit), batch, activations(unit, recompute));
}

void Rig::forward_units(const Batch& batch, bool recompute) {
  for (int unit = 0; unit < head_; ++unit) forward_unit(unit, batch, recompute);
  stream_->enqueue([this] { scratch_->poison(); });
}

double Rig::step(const HostBatch& host_batch, const StepOptions& options) {
  const Batch batch = upload(host_batch);
  std::vector<bool> written(weights_.size(), false);
  if (!options.accumulate) {
    for (const GuardedMemory& gradient : device_gradients_) gradient.poison();
  }
  forward_units(batch, options.recompute);
  model_->head_forward_backward(
      *stream_, unit_weights(head_), batch, activations(head_, false), options.loss_scale,
      d_boundary_->pointer(), unit_gradients(head_, options.accumulate, written), loss_->pointer());
  for (int unit = head_ - 1; unit >= 0; --unit) {
    if (options.recompute) forward_unit(unit, batch, true);
    stream_->enqueue([this] { scratch_->poison(); });
    model_->backward(*stream_, unit, unit_weights(unit), batch,
                     activations(unit, options.recompute), d_boundary_->pointer(),
                     unit_gradients(unit, options.accumulate, written));
  }
  finish();
  return *loss_->pointer().raw<double>();
}

double Rig::loss(const HostBatch& host_batch) {
  const Batch batch = upload(host_batch);
  forward_units(batch, false);
  model_->head_loss(*stream_, unit_weights(head_), batch, activations(head_, false),
                    loss_->pointer());
  finish();
  return *loss_->pointer().raw<double>();
}

std::vector<std::vector<float>> Rig::logits(const HostBatch& host_batch,
                                            const std::vector<std::int32_t>& positions) {
  const Batch batch = upload(host_batch);
  const auto vocabulary = static_cast<std::uint64_t>(model_->config().vocab_size);
  const GuardedMemory rows(*device_, positions.size() * sizeof(std::int32_t));
  const GuardedMemory result(*device_, positions.size() * vocabulary * sizeof(float));
  copy_rows(rows.pointer(), {positions});
  forward_units(batch, false);
  model_->head_logits(*stream_, unit_weights(head_), batch, activations(head_, false),
                      {rows.pointer(), positions.size()}, result.pointer());
  finish();
  EXPECT_TRUE(result.guard_intact());
  std::vector<std::vector<float>> logits;
  for (std::size_t row = 0; row < positions.size(); ++row) {
    const float* first = result.pointer().raw<float>() + row * vocabulary;
    logits.emplace_back(first, first + vocabulary);
  }
  return logits;
}

std::vector<std::vector<float>> Rig::gradients() const {
  std::vector<std::vector<float>> gradients;
  for (std::size_t p = 0; p < gradient_at_.size(); ++p) {
    const auto* first = gradient_at_[p].raw<float>();
    gradients.emplace_back(first, first + model_->parameters()[p].elements());
  }
  return gradients;
}

void Rig::finish() {
  stream_->synchronize();
  for (const auto* group : {&device_weights_, &device_gradients_, &boundaries_, &saved_}) {
    for (const GuardedMemory& memory : *group) EXPECT_TRUE(memory.guard_intact());
  }
  for (const auto* memory : {&shared_saved_, &scratch_, &d_boundary_, &loss_}) {
    EXPECT_TRUE((*memory)->guard_intact());
  }
}

}  // namespace terrace::model
