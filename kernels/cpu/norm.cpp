#include <algorithm>
#include <cmath>

#include "cpu/loops.h"
#include "cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/vectors-inl.h"

// Shapes: N rows, C columns. xhat is the normed input before the weight; g = d_y * weight.

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

struct Statistics {
  float mean = 0;
  float inverse = 0;  ///< 1 / sqrt(variance or mean square + epsilon)
};

/// Two passes, so that the variance does not suffer from a large mean.
template <class T>
Statistics row_statistics(NormKind kind, float epsilon, const T* x, std::int64_t columns) {
  const F32 d;
  Statistics statistics;
  if (kind == NormKind::layer) {
    Vec sum = hn::Zero(d);
    each_vector(columns,
                [&](std::int64_t i, auto part) HWY_ATTR { sum = hn::Add(sum, load(x + i, part)); });
    statistics.mean = sum_lanes(sum) / static_cast<float>(columns);
  }
  Vec squares = hn::Zero(d);
  const Vec mean = hn::Set(d, statistics.mean);
  each_vector(columns, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec centred = zero_rest(hn::Sub(load(x + i, part), mean), part);
    squares = hn::MulAdd(centred, centred, squares);
  });
  const float mean_square = sum_lanes(squares) / static_cast<float>(columns);
  statistics.inverse = 1.0F / std::sqrt(mean_square + epsilon);
  return statistics;
}

template <class T>
void norm_forward_row(const NormArgs& args, std::int64_t row) {
  const F32 d;
  const std::int64_t columns = args.columns;
  const T* x = args.input.data.raw<T>() + row * columns;
  if (args.residual) {
    const T* residual = args.residual.data.raw<T>() + row * columns;
    T* sum = args.sum.data.raw<T>() + row * columns;
    each_vector(columns, [&](std::int64_t i, auto part) HWY_ATTR {
      store(hn::Add(load(x + i, part), load(residual + i, part)), sum + i, part);
    });
    x = sum;
  }
  const Statistics statistics = row_statistics(args.kind, args.epsilon, x, columns);
  if (args.statistics) {
    float* saved = args.statistics.raw<float>() + row * norm_statistics(args.kind);
    if (args.kind == NormKind::layer) *saved++ = statistics.mean;
    *saved = statistics.inverse;
  }
  const Vec mean = hn::Set(d, statistics.mean);
  const Vec inverse = hn::Set(d, statistics.inverse);
  const T* weight = args.weight.data.raw<T>();
  const T* bias = args.bias ? args.bias.data.raw<T>() : nullptr;
  T* output = args.output.data.raw<T>() + row * columns;
  each_vector(columns, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec xhat = hn::Mul(hn::Sub(load(x + i, part), mean), inverse);
    const Vec scaled = hn::Mul(xhat, load(weight + i, part));
    const Vec y = bias != nullptr ? hn::Add(scaled, load(bias + i, part)) : scaled;
    store(y, output + i, part);
  });
}

/// Sums over a row that its d_x needs: of g (layer only) and of g * xhat, over C.
struct RowSums {
  float mean_g = 0;
  float mean_g_xhat = 0;
};

/// The first pass over a row; adds the row to the block's sums of d_weight and d_bias.
template <class T, class DY>
RowSums norm_backward_sums(const NormBackwardArgs& args, std::int64_t row, Statistics statistics,
                           float* d_weight, float* d_bias) {
  const F32 d;
  const T* x = args.input.data.raw<T>() + row * args.columns;
  const DY* d_y = args.d_output.data.raw<DY>() + row * args.columns;
  const T* weight = args.weight.data.raw<T>();
  const Vec mean = hn::Set(d, statistics.mean);
  const Vec inverse = hn::Set(d, statistics.inverse);
  Vec sum_g = hn::Zero(d);
  Vec sum_g_xhat = hn::Zero(d);
  each_vector(args.columns, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec xhat = hn::Mul(hn::Sub(load(x + i, part), mean), inverse);
    const Vec dy = load(d_y + i, part);
    const Vec g = hn::Mul(dy, load(weight + i, part));
    sum_g = hn::Add(sum_g, g);
    sum_g_xhat = hn::MulAdd(g, xhat, sum_g_xhat);
    store(hn::MulAdd(dy, xhat, load(d_weight + i, part)), d_weight + i, part);
    if (d_bias != nullptr) store(hn::Add(dy, load(d_bias + i, part)), d_bias + i, part);
  });
  const auto count = static_cast<float>(args.columns);
  RowSums sums;
  if (args.kind == NormKind::layer) sums.mean_g = sum_lanes(sum_g) / count;
  sums.mean_g_xhat = sum_lanes(sum_g_xhat) / count;
  return sums;
}

/// d_x = d_residual + (g - mean(g) - xhat * mean(g * xhat)) / sigma; mean(g) is 0 for rms.
template <class T, class DY>
void norm_backward_input(const NormBackwardArgs& args, std::int64_t row, Statistics statistics,
                         RowSums sums) {
  const F32 d;
  const std::int64_t first = row * args.columns;
  const T* x = args.input.data.raw<T>() + first;
  const DY* d_y = args.d_output.data.raw<DY>() + first;
  const T* weight = args.weight.data.raw<T>();
  const T* d_residual = args.d_residual ? args.d_residual.data.raw<T>() + first : nullptr;
  T* d_x = args.d_input.data.raw<T>() + first;
  const Vec mean = hn::Set(d, statistics.mean);
  const Vec inverse = hn::Set(d, statistics.inverse);
  const Vec mean_g = hn::Set(d, sums.mean_g);
  const Vec mean_g_xhat = hn::Set(d, sums.mean_g_xhat);
  each_vector(args.columns, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec xhat = hn::Mul(hn::Sub(load(x + i, part), mean), inverse);
    const Vec g = hn::Mul(load(d_y + i, part), load(weight + i, part));
    const Vec centred = hn::NegMulAdd(xhat, mean_g_xhat, hn::Sub(g, mean_g));
    const Vec own = hn::Mul(centred, inverse);
    const Vec all = d_residual != nullptr ? hn::Add(own, load(d_residual + i, part)) : own;
    store(all, d_x + i, part);
  });
}

template <class T, class DY>
void norm_backward_block(const NormBackwardArgs& args, const RowBlocks& blocks,
                         std::int64_t block) {
  const std::int64_t columns = args.columns;
  float* d_weight = args.scratch.raw<float>() + block * columns;
  float* d_bias = args.kind == NormKind::layer ? d_weight + blocks.count * columns : nullptr;
  std::fill_n(d_weight, columns, 0.0F);
  if (d_bias != nullptr) std::fill_n(d_bias, columns, 0.0F);
  for (std::int64_t row = blocks.begin(block); row < blocks.end(block); ++row) {
    const float* saved = args.statistics.raw<float>() + row * norm_statistics(args.kind);
    const Statistics statistics =
        args.kind == NormKind::layer ? Statistics{saved[0], saved[1]} : Statistics{0, saved[0]};
    const RowSums sums = norm_backward_sums<T, DY>(args, row, statistics, d_weight, d_bias);
    norm_backward_input<T, DY>(args, row, statistics, sums);
  }
}

template <class T>
void column_sums_block(const BiasGradientArgs& args, const RowBlocks& blocks, std::int64_t block) {
  float* sums = args.scratch.raw<float>() + block * args.columns;
  std::fill_n(sums, args.columns, 0.0F);
  for (std::int64_t row = blocks.begin(block); row < blocks.end(block); ++row) {
    const T* d_y = args.d_y.data.raw<T>() + row * args.d_y_stride;
    each_vector(args.columns, [&](std::int64_t i, auto part) HWY_ATTR {
      store(hn::Add(load(sums + i, part), load(d_y + i, part)), sums + i, part);
    });
  }
}

}  // namespace

void norm_forward_some(const NormArgs& args, std::int64_t begin, std::int64_t end) {
  with_type(args.input.dtype, [&](auto type) HWY_ATTR {
    for (std::int64_t row = begin; row < end; ++row) norm_forward_row<decltype(type)>(args, row);
  });
}

void norm_backward_some(const NormBackwardArgs& args, const RowBlocks& blocks, std::int64_t block) {
  with_type(args.input.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    if (args.d_output.dtype == args.input.dtype) {
      norm_backward_block<T, T>(args, blocks, block);
    } else {
      norm_backward_block<T, float>(args, blocks, block);
    }
  });
}

void column_sums_some(const BiasGradientArgs& args, const RowBlocks& blocks, std::int64_t block) {
  with_type(args.d_y.dtype,
            [&](auto type) HWY_ATTR { column_sums_block<decltype(type)>(args, blocks, block); });
}

void sum_blocks_some(const BlockSum& sum, std::int64_t begin, std::int64_t end) {
  each_vector(end - begin, [&](std::int64_t i, auto part) HWY_ATTR {
    const float* column = sum.partials + begin + i;
    Vec total = load(column, part);
    for (std::int64_t block = 1; block < sum.blocks; ++block) {
      total = hn::Add(total, load(column + block * sum.columns, part));
    }
    float* target = sum.target + begin + i;
    store(sum.accumulate ? hn::Add(load(target, part), total) : total, target, part);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
namespace {
HWY_EXPORT(norm_forward_some);
HWY_EXPORT(norm_backward_some);
HWY_EXPORT(column_sums_some);
HWY_EXPORT(sum_blocks_some);

/// Adds up what the blocks of rows left, column by column.
void sum_blocks(const Loops& loops, const BlockSum& sum) {
  const auto kernel = HWY_DISPATCH_TABLE(sum_blocks_some)[loops.target.table_index()];
  loops.workers.parallel_for(sum.columns, 512,
                             [&](std::int64_t b, std::int64_t e) { kernel(sum, b, e); });
}

}  // namespace

void run(const Loops& loops, const NormArgs& args) {
  const auto kernel = HWY_DISPATCH_TABLE(norm_forward_some)[loops.target.table_index()];
  loops.workers.parallel_for(args.rows, std::max<std::int64_t>(1, 16384 / args.columns),
                             [&](std::int64_t b, std::int64_t e) { kernel(args, b, e); });
}

std::uint64_t size_scratch(const NormBackwardArgs& args) {
  const std::int64_t arrays = args.kind == NormKind::layer ? 2 : 1;
  return static_cast<std::uint64_t>(RowBlocks(args.rows).count * args.columns * arrays) *
         sizeof(float);
}

void run(const Loops& loops, const NormBackwardArgs& args) {
  const RowBlocks blocks(args.rows);
  const auto kernel = HWY_DISPATCH_TABLE(norm_backward_some)[loops.target.table_index()];
  loops.workers.parallel_for(blocks.count, 1, [&](std::int64_t b, std::int64_t e) {
    for (std::int64_t block = b; block < e; ++block) kernel(args, blocks, block);
  });
  const float* partials = args.scratch.raw<float>();
  sum_blocks(loops, {partials, blocks.count, args.columns, args.d_weight.data.raw<float>(),
                     args.accumulate_weight});
  if (args.kind == NormKind::layer) {
    sum_blocks(loops, {partials + blocks.count * args.columns, blocks.count, args.columns,
                       args.d_bias.data.raw<float>(), args.accumulate_bias});
  }
}

std::uint64_t size_scratch(const BiasGradientArgs& args) {
  return static_cast<std::uint64_t>(RowBlocks(args.rows).count * args.columns) * sizeof(float);
}

void run(const Loops& loops, const BiasGradientArgs& args) {
  const RowBlocks blocks(args.rows);
  const auto kernel = HWY_DISPATCH_TABLE(column_sums_some)[loops.target.table_index()];
  loops.workers.parallel_for(blocks.count, 1, [&](std::int64_t b, std::int64_t e) {
    for (std::int64_t block = b; block < e; ++block) kernel(args, blocks, block);
  });
  sum_blocks(loops, {args.scratch.raw<float>(), blocks.count, args.columns,
                     args.d_bias.data.raw<float>(), args.accumulate});
}

}  // namespace terrace::kernels
#endif
