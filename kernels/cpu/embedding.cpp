#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/loops.h"
#include "terrace/core/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/embedding.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

template <class T>
void embed_token(const EmbeddingArgs& args, std::int64_t n) {
  const std::int64_t columns = args.columns;
  const std::int32_t token = args.tokens.raw<std::int32_t>()[n];
  require(
      token >= 0 && token < args.vocabulary, ErrorKind::data,
      "Token {} at position {} of the micro-batch is outside the vocabulary [0, {}); check that "
      "the data was tokenized for this model.",
      token, n, args.vocabulary);
  const T* row = args.table.data.raw<T>() + token * columns;
  T* output = args.output.data.raw<T>() + n * columns;
  if (!args.positions) {
    std::memcpy(output, row, static_cast<std::size_t>(columns) * sizeof(T));
    return;
  }
  const T* position = args.positions.data.raw<T>() + n % args.sequence * columns;
  each_vector(columns, [&](std::int64_t i, auto part) HWY_ATTR {
    store(hn::Add(load(row + i, part), load(position + i, part)), output + i, part);
  });
}

template <class T>
void add_row(const T* row, float* sum, std::int64_t columns) {
  each_vector(columns, [&](std::int64_t i, auto part) HWY_ATTR {
    store(hn::Add(load(sum + i, part), load(row + i, part)), sum + i, part);
  });
}

}  // namespace

void embedding_forward_some(const EmbeddingArgs& args, std::int64_t begin, std::int64_t end) {
  with_type(args.table.dtype, [&](auto type) HWY_ATTR {
    for (std::int64_t n = begin; n < end; ++n) embed_token<decltype(type)>(args, n);
  });
}

/// Each row of the table adds up its own tokens, in their order.
void embedding_backward_some(const EmbeddingBackwardArgs& args, const std::int32_t* heads,
                             const std::int32_t* next, std::int64_t begin, std::int64_t end) {
  with_type(args.d_output.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    for (std::int64_t token = begin; token < end; ++token) {
      float* sum = args.d_table.data.raw<float>() + token * args.columns;
      if (!args.accumulate) std::fill_n(sum, args.columns, 0.0F);
      for (std::int32_t n = heads[token]; n >= 0; n = next[n]) {
        add_row(args.d_output.data.raw<T>() + n * args.columns, sum, args.columns);
      }
    }
  });
}

void position_backward_some(const EmbeddingBackwardArgs& args, std::int64_t begin,
                            std::int64_t end) {
  with_type(args.d_output.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    for (std::int64_t position = begin; position < end; ++position) {
      float* sum = args.d_positions.data.raw<float>() + position * args.columns;
      if (!args.accumulate_positions) std::fill_n(sum, args.columns, 0.0F);
      if (position >= args.sequence) continue;
      for (std::int64_t row = 0; row < args.rows; ++row) {
        const std::int64_t n = row * args.sequence + position;
        add_row(args.d_output.data.raw<T>() + n * args.columns, sum, args.columns);
      }
    }
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
namespace {
HWY_EXPORT(embedding_forward_some);
HWY_EXPORT(embedding_backward_some);
HWY_EXPORT(position_backward_some);

std::int64_t rows_of_a_piece(std::int64_t columns) {
  return std::max<std::int64_t>(1, 16384 / columns);
}

}  // namespace

void run(const Loops& loops, const EmbeddingArgs& args) {
  const auto kernel = HWY_DISPATCH_TABLE(embedding_forward_some)[loops.target.table_index()];
  loops.workers.parallel_for(args.rows * args.sequence, rows_of_a_piece(args.columns),
                             [&](std::int64_t b, std::int64_t e) { kernel(args, b, e); });
}

std::uint64_t size_scratch(const EmbeddingBackwardArgs& args) {
  return static_cast<std::uint64_t>(args.vocabulary + args.rows * args.sequence) *
         sizeof(std::int32_t);
}

void run(const Loops& loops, const EmbeddingBackwardArgs& args) {
  // A list of its positions for each token, ascending: built from the last position to the first.
  auto* heads = args.scratch.raw<std::int32_t>();
  std::int32_t* next = heads + args.vocabulary;
  const auto* tokens = args.tokens.raw<std::int32_t>();
  std::fill_n(heads, args.vocabulary, -1);
  for (std::int64_t n = args.rows * args.sequence - 1; n >= 0; --n) {
    next[n] = std::exchange(heads[tokens[n]], static_cast<std::int32_t>(n));
  }
  const auto table = HWY_DISPATCH_TABLE(embedding_backward_some)[loops.target.table_index()];
  loops.workers.parallel_for(
      args.vocabulary, rows_of_a_piece(args.columns),
      [&](std::int64_t b, std::int64_t e) { table(args, heads, next, b, e); });
  if (!args.d_positions) return;
  const auto positions = HWY_DISPATCH_TABLE(position_backward_some)[loops.target.table_index()];
  loops.workers.parallel_for(args.position_rows, rows_of_a_piece(args.columns),
                             [&](std::int64_t b, std::int64_t e) { positions(args, b, e); });
}

void run(const Loops& loops, const GatherRowsArgs& args) {
  const std::size_t bytes = static_cast<std::size_t>(args.columns) * size_of(args.source.dtype);
  const auto* indices = args.indices.raw<std::int32_t>();
  loops.workers.parallel_for(
      args.count, rows_of_a_piece(args.columns), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          require(indices[i] >= 0 && indices[i] < args.source_rows, ErrorKind::internal,
                  "Row {} was to be gathered of a matrix of {} rows.", indices[i],
                  args.source_rows);
          std::memcpy(args.output.data.raw() + static_cast<std::size_t>(i) * bytes,
                      args.source.data.raw() + static_cast<std::size_t>(indices[i]) * bytes, bytes);
        }
      });
}

}  // namespace terrace::kernels
#endif
