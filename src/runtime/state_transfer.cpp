#include "terrace/runtime/state_transfer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "terrace/checkpoint/held_values.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/kernels/split_master.h"

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
std::span<T> as(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}
template <class T>
std::span<const T> as_const(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

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

StateTransfer::StateTransfer(const RunContext& context, const optim::StateFormat& format,
                             Workers& workers)
    : context_(context),
      format_(format),
      workers_(workers),
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
  return as<float>(part(parameter_part() + 1, static_cast<std::uint64_t>(count) * sizeof(float)));
}

std::uint64_t StateTransfer::page_bytes(const plan::Place& place) const {
  return context_.plan.memory.region(place.region).bytes;
}

void StateTransfer::fetch_page(const plan::Place& place, std::span<std::byte> target) {
  channel_->read(io::PageId(static_cast<std::uint64_t>(place.region.value)), target, 0);
  std::array<std::uint64_t, 1> done{};
  while (channel_->in_flight() > 0) (void)channel_->wait(done);
}

void StateTransfer::store_page(const plan::Place& place, std::span<const std::byte> source) {
  channel_->write(io::PageId(static_cast<std::uint64_t>(place.region.value)), source, 0);
  std::array<std::uint64_t, 1> done{};
  while (channel_->in_flight() > 0) (void)channel_->wait(done);
}

std::span<std::byte> StateTransfer::state_bytes(int chunk, std::size_t kind, bool fetch) {
  const plan::Place& place = context_.plan.state[static_cast<std::size_t>(chunk)][kind];
  const std::uint64_t bytes = page_bytes(place);
  if (context_.plan.memory.region(place.region).tier != memory::Tier::disk) {
    return context_.memory.host(place.region, place.offset, bytes);
  }
  if (fetch && cached_[kind] != chunk) {
    fetch_page(place, part(kind, round_up(bytes, io::PageStore::kAlignment)));
    cached_[kind] = chunk;
  }
  return part(kind, bytes);
}

std::span<std::byte> StateTransfer::parameter_bytes(int chunk, bool fetch) {
  const auto index = static_cast<std::size_t>(chunk);
  const plan::Place& place = context_.plan.parameter[index];
  const plan::Chunk& range = context_.plan.chunks[index];
  const std::uint64_t element_bytes = size_of(context_.model.compute_dtype());
  const std::uint64_t bytes = static_cast<std::uint64_t>(range.range.count) * element_bytes;
  const memory::RegionId copy = context_.plan.host_parameter[static_cast<std::size_t>(range.flat)];
  if (copy != memory::kNoRegion) {
    return context_.memory.host(copy, static_cast<std::uint64_t>(range.range.first) * element_bytes,
                                bytes);
  }
  const memory::Tier tier = context_.plan.memory.region(place.region).tier;
  if (tier == memory::Tier::host) return context_.memory.host(place.region, place.offset, bytes);
  if (fetch && cached_[parameter_part()] != chunk) {
    if (tier == memory::Tier::disk) {
      fetch_page(place, part(parameter_part(), round_up(bytes, io::PageStore::kAlignment)));
    } else {
      stream_->copy_to_host(part(parameter_part(), bytes),
                            context_.memory.device(place.region, place.offset));
      stream_->synchronize();
    }
    cached_[parameter_part()] = chunk;
  }
  return part(parameter_part(), bytes);
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
  if (master && format_.master == optim::MasterFormat::split) {
    return kernels::split_master(workers_, values, as<Bf16>(parameter), as<std::uint16_t>(state));
  }
  if (master) {
    kernels::narrow_master(workers_, values, context_.model.compute_dtype(), parameter);
  }
  if (master || format_.moments == DType::f32) {
    std::memcpy(state.data(), values.data(), values.size_bytes());
    return;
  }
  std::ranges::transform(values, as<Bf16>(state).begin(), to_bf16);
}

void StateTransfer::place_parameter(int chunk, std::span<const std::byte> source) {
  const plan::Place& place = context_.plan.parameter[static_cast<std::size_t>(chunk)];
  const memory::Tier tier = context_.plan.memory.region(place.region).tier;
  if (tier == memory::Tier::disk) {
    const std::uint64_t bytes = round_up(source.size(), io::PageStore::kAlignment);
    store_page(place, {source.data(), bytes});  // from the transfer memory, which has whole blocks
  } else if (tier == memory::Tier::device) {
    stream_->copy_to_device(context_.memory.device(place.region, place.offset), source);
    stream_->synchronize();
  }
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
      kernels::narrow_master(workers_, values, context_.model.compute_dtype(), parameter);
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
      const plan::Place& place = plan.state[static_cast<std::size_t>(chunk)][kind];
      if (range.tier == memory::Tier::disk) {
        store_page(place, part(kind, round_up(state.size(), io::PageStore::kAlignment)));
      }
    }
    place_parameter(chunk, parameter);
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
    kernels::narrow_master(workers_, values, context_.model.compute_dtype(), staged);
    const plan::Place& place = plan.parameter[static_cast<std::size_t>(chunk)];
    if (plan.memory.region(place.region).tier == memory::Tier::host) {
      std::memcpy(context_.memory.host(place.region, place.offset, staged.size()).data(),
                  staged.data(), staged.size());
    } else {
      place_parameter(chunk, staged);
    }
  }
  return all_held;
}

void StateTransfer::decode(int chunk, std::size_t kind, std::int64_t first,
                           std::span<float> values) {
  const bool master = context_.plan.request.state[kind].kind == StateKind::master;
  const std::span<const std::byte> state = state_bytes(chunk, kind, true);
  const auto begin = static_cast<std::size_t>(first);
  if (master && format_.master == optim::MasterFormat::split) {
    const std::span<const std::byte> parameter = parameter_bytes(chunk, true);
    return kernels::join_master(workers_, as_const<Bf16>(parameter).subspan(begin, values.size()),
                                as_const<std::uint16_t>(state).subspan(begin, values.size()),
                                values);
  }
  if (master || format_.moments == DType::f32) {
    std::memcpy(values.data(), as_const<float>(state).subspan(begin).data(), values.size_bytes());
    return;
  }
  std::ranges::transform(as_const<Bf16>(state).subspan(begin, values.size()), values.begin(),
                         [](Bf16 value) { return to_float(value); });
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
