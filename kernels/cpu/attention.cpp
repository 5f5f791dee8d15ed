#include "cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "cpu/attention_plan.h"

// Shapes: B rows, T tokens, H heads, G key-value heads, D head size; a tile is R queries by W keys.

namespace terrace::kernels {
namespace {

constexpr std::int64_t kTileElements = kQueryTile * kKeyTile;

/// One thread's share of the scratch memory, laid out by a first pass that only measures (base 0).
class Cursor {
 public:
  explicit Cursor(std::byte* base) : base_(reinterpret_cast<std::uintptr_t>(base)) {}
  template <class T>
  T* take(std::int64_t count) {
    auto* taken = reinterpret_cast<T*>(base_ + used_);
    used_ += (static_cast<std::uint64_t>(count) * sizeof(T) + 63) / 64 * 64;
    return taken;
  }
  [[nodiscard]] std::uint64_t used() const { return used_; }

 private:
  std::uintptr_t base_;
  std::uint64_t used_ = 0;
};

/// In FP32 probabilities take the place of scores; in bf16 they lie apart.
void* narrow_tile(Cursor& cursor, DType dtype, float* wide) {
  return dtype == DType::f32 ? static_cast<void*>(wide) : cursor.take<Bf16>(kTileElements);
}

struct ForwardMemory {
  ForwardMemory(Cursor& cursor, const AttentionPlan& plan)
      : scores(cursor.take<float>(kTileElements)),
        probabilities(narrow_tile(cursor, plan.shape.dtype, scores)),
        output(cursor.take<float>(kQueryTile * plan.shape.head_size)),
        greatest(cursor.take<float>(kQueryTile)),
        sum(cursor.take<float>(kQueryTile)),
        product(cursor.take<std::byte>(static_cast<std::int64_t>(plan.product_scratch_bytes))) {}

  float* scores;
  void* probabilities;
  float* output;
  float* greatest;
  float* sum;
  void* product;
};

struct BackwardMemory {
  BackwardMemory(Cursor& cursor, const AttentionPlan& plan)
      : scores(cursor.take<float>(kTileElements)),
        d_probabilities(cursor.take<float>(kTileElements)),
        probabilities(narrow_tile(cursor, plan.shape.dtype, scores)),
        d_scores(narrow_tile(cursor, plan.shape.dtype, d_probabilities)),
        d_q(cursor.take<float>(kQueryTile * plan.shape.head_size)),
        d_k(cursor.take<float>(plan.shape.sequence * plan.shape.head_size)),
        d_v(cursor.take<float>(plan.shape.sequence * plan.shape.head_size)),
        delta(cursor.take<float>(plan.shape.sequence)),
        product(cursor.take<std::byte>(static_cast<std::int64_t>(plan.product_scratch_bytes))) {}

  float* scores;
  float* d_probabilities;
  void* probabilities;
  void* d_scores;
  float* d_q;    ///< [R, D]
  float* d_k;    ///< [T, D], the sum over the heads of a group
  float* d_v;    ///< [T, D]
  float* delta;  ///< [T]: the inner products of output and d_output
  void* product;
};

template <class Memory>
std::uint64_t memory_bytes(const AttentionPlan& plan) {
  Cursor cursor(nullptr);
  const Memory memory(cursor, plan);
  (void)memory;
  return cursor.used();
}

/// Runs `body(slot, item)` for every item, in order of `item` as threads become free.
template <class Body>
void each_item(Workers& workers, std::int64_t items, const Body& body) {
  std::atomic<std::int64_t> next{0};
  workers.parallel_for(workers.threads(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t slot = begin; slot < end; ++slot) {
      for (std::int64_t item = next++; item < items; item = next++) {
        body(static_cast<int>(slot), item);
      }
    }
  });
}

std::byte* slot_memory(device::Pointer scratch, std::uint64_t bytes, int slot) {
  return (scratch + bytes * static_cast<std::uint64_t>(slot)).raw();
}

TilePlace place_of(const AttentionArgs& args, const QueryBlock& block, const AttentionTile& tile) {
  return {block.first, block.rows, tile.first_key, tile.width,
          args.window, args.scale, args.q.dtype};
}

/// Where one head's operands begin, for one row of the micro-batch.
struct Head {
  Head(const AttentionShape& shape_in, const AttentionArgs& args, std::int64_t row,
       std::int64_t head)
      : shape(shape_in),
        q(args.q.offset(row * shape.sequence * shape.q_stride + head * shape.head_size)),
        k(args.k.offset(row * shape.sequence * shape.k_stride + kv(args, head))),
        v(args.v.offset(row * shape.sequence * shape.v_stride + kv(args, head))),
        output(args.output.offset(row * shape.sequence * shape.output_stride +
                                  head * shape.head_size)),
        log_sum_exp(args.log_sum_exp.raw<float>() + (row * args.heads + head) * shape.sequence) {}

  static std::int64_t kv(const AttentionArgs& args, std::int64_t head) {
    return head / (args.heads / args.kv_heads) * args.head_size;
  }
  [[nodiscard]] const void* q_at(std::int64_t token) const {
    return q.offset(token * shape.q_stride).data.raw();
  }
  [[nodiscard]] const void* k_at(std::int64_t token) const {
    return k.offset(token * shape.k_stride).data.raw();
  }
  [[nodiscard]] const void* v_at(std::int64_t token) const {
    return v.offset(token * shape.v_stride).data.raw();
  }

  const AttentionShape& shape;
  View q;
  View k;
  View v;
  View output;
  float* log_sum_exp;  ///< [T]
};

void forward_block(CpuTarget cpu, int slot, const ForwardMemory& memory, const Head& head,
                   const AttentionArgs& args, const QueryBlock& block) {
  SoftmaxTile softmax{memory.scores, memory.probabilities, memory.greatest, memory.sum,
                      memory.output, head.shape.head_size, /*first=*/true};
  for (const AttentionTile& tile : block.tiles) {
    tile.scores->run(slot, {head.q_at(block.first), head.k_at(tile.first_key), memory.scores,
                            nullptr, nullptr, memory.product});
    softmax_tile(cpu, place_of(args, block, tile), softmax);
    tile.values->run(slot, {memory.probabilities, head.v_at(tile.first_key), memory.output, nullptr,
                            nullptr, memory.product});
    softmax.first = false;
  }
  const View target = head.output.offset(block.first * head.shape.output_stride);
  finish_tile(
      cpu, place_of(args, block, block.tiles.back()),
      {softmax, target.data.raw(), head.shape.output_stride, head.log_sum_exp + block.first});
}

/// Adds the tile's part to d_q of the block and to d_k and d_v of the head's group.
void backward_tile(CpuTarget cpu, int slot, const BackwardMemory& memory, const Head& head,
                   const AttentionBackwardArgs& args, const View& d_output, const QueryBlock& block,
                   const AttentionTile& tile) {
  const std::int64_t depth = head.shape.head_size;
  const void* q = head.q_at(block.first);
  const void* d_o = d_output.offset(block.first * head.shape.output_stride).data.raw();
  auto run = [&](const Product* product, const void* a, const void* b, float* target) {
    product->run(slot, {a, b, target, nullptr, nullptr, memory.product});
  };
  run(tile.scores, q, head.k_at(tile.first_key), memory.scores);
  run(tile.d_probabilities, d_o, head.v_at(tile.first_key), memory.d_probabilities);
  softmax_backward_tile(
      cpu, place_of(args.forward, block, tile),
      {memory.scores, memory.d_probabilities, memory.probabilities, memory.d_scores,
       head.log_sum_exp + block.first, memory.delta + block.first});
  run(tile.d_values, memory.probabilities, d_o, memory.d_v + tile.first_key * depth);
  run(tile.d_queries, memory.d_scores, head.k_at(tile.first_key), memory.d_q);
  run(tile.d_keys, memory.d_scores, q, memory.d_k + tile.first_key * depth);
}

/// target [rows, D], rows `stride` apart, = source, dense.
void store_rows(CpuTarget cpu, View target, std::int64_t stride, const float* source,
                std::int64_t rows, std::int64_t depth) {
  const View dense{device::Pointer(const_cast<float*>(source)), DType::f32};
  for (std::int64_t row = 0; row < rows; ++row) {
    convert_serially(cpu, target.offset(row * stride), dense.offset(row * depth), depth);
  }
}

/// All heads that share one key-value head, in order, so that their sums have one order.
void backward_group(CpuTarget cpu, int slot, const BackwardMemory& memory,
                    const AttentionPlan& plan, const AttentionBackwardArgs& args, std::int64_t row,
                    std::int64_t group) {
  const AttentionShape& shape = plan.shape;
  const AttentionArgs& forward = args.forward;
  const std::int64_t heads = forward.heads / forward.kv_heads;
  std::fill_n(memory.d_k, shape.sequence * shape.head_size, 0.0F);
  std::fill_n(memory.d_v, shape.sequence * shape.head_size, 0.0F);
  for (std::int64_t h = group * heads; h < (group + 1) * heads; ++h) {
    const Head head(shape, forward, row, h);
    const std::int64_t first = row * shape.sequence * shape.output_stride + h * shape.head_size;
    const View d_output = args.d_output.offset(first);
    row_products(cpu, {head.output.data.raw(), d_output.data.raw(), shape.dtype, shape.sequence,
                       shape.head_size, shape.output_stride, memory.delta});
    const View d_q = args.d_q.offset(row * shape.sequence * shape.q_stride + h * shape.head_size);
    for (const QueryBlock& block : plan.blocks) {
      for (const AttentionTile& tile : block.tiles) {
        backward_tile(cpu, slot, memory, head, args, d_output, block, tile);
      }
      store_rows(cpu, d_q.offset(block.first * shape.q_stride), shape.q_stride, memory.d_q,
                 block.rows, shape.head_size);
    }
  }
  const std::int64_t column = group * shape.head_size;
  store_rows(cpu, args.d_k.offset(row * shape.sequence * shape.k_stride + column), shape.k_stride,
             memory.d_k, shape.sequence, shape.head_size);
  store_rows(cpu, args.d_v.offset(row * shape.sequence * shape.v_stride + column), shape.v_stride,
             memory.d_v, shape.sequence, shape.head_size);
}

}  // namespace

struct Attention::Impl {
  Loops loops;
  Products products;
  std::mutex mutex;
  std::map<AttentionShape, AttentionPlan> plans;
};

Attention::Attention(const Loops& loops, bool has_bf16)
    : impl_(
          new Impl{loops,
                   Products({1, loops.workers.threads(), has_bf16, /*repack=*/false, loops.target}),
                   {},
                   {}}) {}
Attention::~Attention() = default;

const AttentionPlan& Attention::plan(const AttentionArgs& args) {
  const std::scoped_lock lock(impl_->mutex);
  const AttentionShape shape = attention_shape(args);
  const auto found = impl_->plans.find(shape);
  if (found != impl_->plans.end()) return found->second;
  return impl_->plans.emplace(shape, AttentionPlan(shape, impl_->products)).first->second;
}

std::uint64_t Attention::forward_scratch(const AttentionPlan& plan) const {
  return memory_bytes<ForwardMemory>(plan) *
         static_cast<std::uint64_t>(impl_->loops.workers.threads());
}

std::uint64_t Attention::backward_scratch(const AttentionPlan& plan) const {
  return memory_bytes<BackwardMemory>(plan) *
         static_cast<std::uint64_t>(impl_->loops.workers.threads());
}

void Attention::forward(const AttentionPlan& plan, const AttentionArgs& args) const {
  const std::uint64_t bytes = memory_bytes<ForwardMemory>(plan);
  const auto blocks = static_cast<std::int64_t>(plan.blocks.size());
  const std::int64_t heads = args.rows * args.heads;
  each_item(impl_->loops.workers, heads * blocks, [&](int slot, std::int64_t item) {
    Cursor cursor(slot_memory(args.scratch, bytes, slot));
    const ForwardMemory memory(cursor, plan);
    // The last blocks see most keys: they come first, so that threads end together.
    const std::int64_t block = blocks - 1 - item / heads;
    const Head head(plan.shape, args, item % heads / args.heads, item % args.heads);
    forward_block(impl_->loops.target, slot, memory, head, args,
                  plan.blocks[static_cast<std::size_t>(block)]);
  });
}

void Attention::backward(const AttentionPlan& plan, const AttentionBackwardArgs& args) const {
  const std::uint64_t bytes = memory_bytes<BackwardMemory>(plan);
  const std::int64_t groups = args.forward.kv_heads;
  each_item(impl_->loops.workers, args.forward.rows * groups, [&](int slot, std::int64_t item) {
    Cursor cursor(slot_memory(args.scratch, bytes, slot));
    const BackwardMemory memory(cursor, plan);
    backward_group(impl_->loops.target, slot, memory, plan, args, item / groups, item % groups);
  });
}

}  // namespace terrace::kernels
