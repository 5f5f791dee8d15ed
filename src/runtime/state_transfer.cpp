#include "terrace/runtime/state_transfer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "terrace/checkpoint/held_values.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::runtime {
namespace {

std::unordered_map<std::string, int> index_names(const model::Model& model) {
  std::unordered_map<std::string, int> names;
  for (std::size_t index = 0; index < model.parameters().size(); ++index) {
    names.emplace(model.parameters()[index].name, static_cast<int>(index));
  }
  return names;
}

template <class T>
device::Pointer at(std::span<T> host) {
  return device::Span(host).data();
}

io::PageId page_of(const plan::Place& place) {
  return io::PageId(static_cast<std::uint64_t>(place.region.value));
}

/// What the disk moves of the transfer memory, whose parts are made of whole blocks.
std::size_t whole_blocks(std::size_t bytes) { return round_up(bytes, io::PageStore::kAlignment); }

/// Tells how many bytes of masters are done, chunk by chunk.
class ChunkMeter {
 public:
  ChunkMeter(const plan::Plan& plan, const ProgressFunction& report) : report_(report) {
    for (const plan::Chunk& chunk : plan.chunks) bytes_total_ += bytes_of(chunk);
    advance(0);
  }
  void add(const plan::Chunk& chunk) { advance(bytes_of(chunk)); }

 private:
  static std::uint64_t bytes_of(const plan::Chunk& chunk) {
    return static_cast<std::uint64_t>(chunk.range.count) * sizeof(float);
  }
  void advance(std::uint64_t bytes) {
    bytes_done_ += bytes;
    if (report_) report_({"state", bytes_done_, bytes_total_});
  }

  const ProgressFunction& report_;
  std::uint64_t bytes_done_ = 0;
  std::uint64_t bytes_total_ = 0;
};

}  // namespace

StateTransfer::StateTransfer(const RunContext& context, const optim::StateFormat& format)
    : context_(context),
      format_(format),
      stream_(context.device.make_stream("transfer")),
      parameter_by_name_(index_names(context.model)),
      cached_(static_cast<std::size_t>(context.plan.transfer_pages), -1) {
  if (context.store != nullptr) channel_ = context.store->open_channel();
  const auto& chunks = context.plan.chunks;
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    if (chunks[chunk].range.first == 0) first_chunk_.push_back(static_cast<int>(chunk));
  }
}

std::span<std::byte> StateTransfer::part(std::size_t index, std::uint64_t bytes) const {
  return context_.memory.host(context_.plan.transfer, index * context_.plan.transfer_bytes, bytes);
}

std::span<float> StateTransfer::floats(std::int64_t count) const {
  const auto elements = static_cast<std::size_t>(count);
  return {reinterpret_cast<float*>(part(parameter_part() + 1, elements * sizeof(float)).data()),
          elements};
}

void StateTransfer::fetch(const plan::Place& place, std::span<std::byte> target) {
  if (tier_of(place) == memory::Tier::device) {
    stream_->copy_to_host(target, context_.memory.device(place.region, place.offset));
    return stream_->synchronize();
  }
  channel_->read(page_of(place), {target.data(), whole_blocks(target.size())}, 0);
  std::array<std::uint64_t, 1> done{};
  while (channel_->in_flight() > 0) (void)channel_->wait(done);
}

void StateTransfer::store(const plan::Place& place, std::span<const std::byte> source) {
  const memory::Tier tier = tier_of(place);
  if (tier == memory::Tier::device) {
    stream_->copy_to_device(context_.memory.device(place.region, place.offset), source);
    stream_->synchronize();
  } else if (tier == memory::Tier::disk) {
    channel_->write(page_of(place), {source.data(), whole_blocks(source.size())}, 0);
    std::array<std::uint64_t, 1> done{};
    while (channel_->in_flight() > 0) (void)channel_->wait(done);
  }
}

std::span<std::byte> StateTransfer::host_bytes(const plan::Place& place, std::size_t index,
                                               std::uint64_t bytes, int chunk, bool fetch) {
  if (tier_of(place) == memory::Tier::host) {
    return context_.memory.host(place.region, place.offset, bytes);
  }
  if (fetch && cached_[index] != chunk) {
    this->fetch(place, part(index, bytes));
    cached_[index] = chunk;
  }
  return part(index, bytes);
}

std::span<std::byte> StateTransfer::state_bytes(int chunk, std::size_t kind, bool fetch) {
  const plan::Place& place = context_.plan.state[static_cast<std::size_t>(chunk)][kind];
  return host_bytes(place, kind, context_.plan.memory.region(place.region).bytes, chunk, fetch);
}

std::span<std::byte> StateTransfer::parameter_bytes(int chunk, bool fetch) {
  const auto index = static_cast<std::size_t>(chunk);
  const plan::Chunk& range = context_.plan.chunks[index];
  const std::uint64_t element_bytes = size_of(context_.model.compute_dtype());
  const std::uint64_t bytes = static_cast<std::uint64_t>(range.range.count) * element_bytes;
  const memory::RegionId copy = context_.plan.host_parameter[static_cast<std::size_t>(range.flat)];
  if (copy != memory::kNoRegion) {
    return context_.memory.host(copy, static_cast<std::uint64_t>(range.range.first) * element_bytes,
                                bytes);
  }
  return host_bytes(context_.plan.parameter[index], parameter_part(), bytes, chunk, fetch);
}

void StateTransfer::read_chunk_values(checkpoint::StateSource& source, StateKind kind,
                                      const plan::Chunk& chunk, std::span<float> values) const {
  std::ranges::fill(values, 0.0F);  // padding
  for (const shard::TensorPlace& tensor : context_.layout.flat(chunk.flat).tensors) {
    const std::int64_t first = std::max(tensor.range.first, chunk.range.first);
    const std::int64_t end = std::min(tensor.range.end(), chunk.range.end());
    if (first >= end) continue;
    source.read(kind, context_.model.parameters()[static_cast<std::size_t>(tensor.parameter)].name,
                first - tensor.range.first,
                values.subspan(static_cast<std::size_t>(first - chunk.range.first),
                               static_cast<std::size_t>(end - first)));
  }
}

void StateTransfer::encode(std::size_t kind, std::span<const float> values,
                           std::span<std::byte> state, std::span<std::byte> parameter) {
  const bool master = context_.plan.request.state[kind].kind == StateKind::master;
  const std::int64_t count = std::ssize(values);
  if (master && format_.master == optim::MasterFormat::split) {
    return run(kernels::SplitMasterArgs{count, at(values), at(parameter), at(state)});
  }
  if (master) narrow(values, parameter);
  if (master || format_.moments == DType::f32) {
    std::memcpy(state.data(), values.data(), values.size_bytes());
    return;
  }
  run(kernels::ConvertArgs{count, {at(values), DType::f32}, {at(state), DType::bf16}});
}

void StateTransfer::narrow(std::span<const float> values, std::span<std::byte> parameter) {
  run(kernels::NarrowMasterArgs{
      std::ssize(values), at(values), {at(parameter), context_.model.compute_dtype()}});
}

void StateTransfer::load(checkpoint::StateSource& source, bool moments,
                         const ProgressFunction& progress) {
  const plan::Plan& plan = context_.plan;
  ChunkMeter meter(plan, progress);
  forget();
  for (int chunk = 0; chunk < static_cast<int>(plan.chunks.size()); ++chunk) {
    const plan::Chunk& range = plan.chunks[static_cast<std::size_t>(chunk)];
    const std::span<float> values = floats(range.range.count);
    const std::span<std::byte> parameter = parameter_bytes(chunk, false);
    if (plan.request.state.empty()) {  // a model that is not trained: parameters only
      read_chunk_values(source, StateKind::parameter, range, values);
      narrow(values, parameter);
    }
    for (std::size_t kind = 0; kind < plan.request.state.size(); ++kind) {
      const StateKind state_kind = plan.request.state[kind].kind;
      if (state_kind == StateKind::master || moments) {
        read_chunk_values(source, state_kind, range, values);
      } else {
        std::ranges::fill(values, 0.0F);
      }
      const std::span<std::byte> state = state_bytes(chunk, kind, false);
      encode(kind, values, state, parameter);
      store(plan.state[static_cast<std::size_t>(chunk)][kind], state);
    }
    store(plan.parameter[static_cast<std::size_t>(chunk)], parameter);
    meter.add(range);
  }
}

bool StateTransfer::load_parameters_from_store(const ProgressFunction& progress) {
  const plan::Plan& plan = context_.plan;
  ChunkMeter meter(plan, progress);
  bool all_held = true;
  forget();
  const std::uint64_t element_bytes = size_of(context_.model.compute_dtype());
  for (int chunk = 0; chunk < static_cast<int>(plan.chunks.size()); ++chunk) {
    const plan::Chunk& range = plan.chunks[static_cast<std::size_t>(chunk)];
    meter.add(range);
    if (plan.parameter_tier[static_cast<std::size_t>(range.flat)] == memory::Tier::disk) continue;
    const std::span<float> values = floats(range.range.count);
    decode(chunk, 0, 0, values);
    if (checkpoint::count_unheld(values, context_.model.compute_dtype()) > 0) all_held = false;
    // Through the transfer memory: a parameter on the device may be out of the host's reach.
    const std::span<std::byte> staged =
        part(parameter_part(), static_cast<std::uint64_t>(range.range.count) * element_bytes);
    narrow(values, staged);
    const plan::Place& place = plan.parameter[static_cast<std::size_t>(chunk)];
    if (tier_of(place) == memory::Tier::host) {
      std::memcpy(context_.memory.host(place.region, place.offset, staged.size()).data(),
                  staged.data(), staged.size());
    } else {
      store(place, staged);
    }
  }
  return all_held;
}

void StateTransfer::decode(int chunk, std::size_t kind, std::int64_t first,
                           std::span<float> values) {
  const bool master = context_.plan.request.state[kind].kind == StateKind::master;
  const std::span<std::byte> state = state_bytes(chunk, kind, true);
  const auto from = [&](std::span<std::byte> bytes, std::uint64_t element_bytes) {
    return at(bytes) + static_cast<std::uint64_t>(first) * element_bytes;
  };
  const std::int64_t count = std::ssize(values);
  if (master && format_.master == optim::MasterFormat::split) {
    const std::span<std::byte> parameter = parameter_bytes(chunk, true);
    return run(kernels::JoinMasterArgs{count, from(parameter, sizeof(Bf16)),
                                       from(state, sizeof(std::uint16_t)), at(values)});
  }
  if (master || format_.moments == DType::f32) {
    std::memcpy(values.data(), from(state, sizeof(float)).raw(), values.size_bytes());
    return;
  }
  run(kernels::ConvertArgs{
      count, {from(state, sizeof(Bf16)), DType::bf16}, {at(values), DType::f32}});
}

void StateTransfer::read(StateKind kind, const std::string& tensor, std::int64_t first,
                         std::span<float> values) {
  const auto& state = context_.plan.request.state;
  const auto element = std::ranges::find(state, kind, &plan::StateElement::kind);
  require(element != state.end(), ErrorKind::internal, "the optimizer keeps no {}",
          terrace::name_of(kind));
  const shard::ParameterPlace& place = context_.layout.place(parameter_by_name_.at(tensor));
  const std::int64_t chunk_elements = context_.plan.request.chunk_elements;
  std::int64_t at = place.range.first + first;  // in the flat
  while (!values.empty()) {
    const std::int64_t in_chunk = at % chunk_elements;
    const auto count = std::min(values.size(), static_cast<std::size_t>(chunk_elements - in_chunk));
    const int chunk =
        first_chunk_[static_cast<std::size_t>(place.flat)] + static_cast<int>(at / chunk_elements);
    decode(chunk, static_cast<std::size_t>(element - state.begin()), in_chunk, values.first(count));
    values = values.subspan(count);
    at += static_cast<std::int64_t>(count);
  }
}

InitialState::InitialState(const model::Model& model, std::uint64_t seed, Workers& workers)
    : model_(model), seed_(seed), workers_(workers), parameter_by_name_(index_names(model)) {}

void InitialState::read(StateKind kind, const std::string& tensor, std::int64_t first,
                        std::span<float> values) {
  if (kind != StateKind::master) {
    std::ranges::fill(values, 0.0F);
    return;
  }
  constexpr std::int64_t kGrain = 4096;  // some 100 us
  const int parameter = parameter_by_name_.at(tensor);
  workers_.parallel_for(std::ssize(values), kGrain, [&](std::int64_t begin, std::int64_t end) {
    model_.initial_values(
        parameter, seed_, first + begin,
        values.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
  });
}

}  // namespace terrace::runtime
