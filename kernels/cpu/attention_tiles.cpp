#include "cpu/attention_tiles.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention_tiles.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

/// The keys [begin, end) of a tile that the query in a row of it sees.
struct Seen {
  std::int64_t begin;
  std::int64_t end;
};

Seen seen(const TilePlace& place, std::int64_t row) {
  const std::int64_t query = place.first_query + row;
  const std::int64_t end = std::clamp(query + 1 - place.first_key, std::int64_t{0}, place.width);
  if (place.window == 0) return {0, end};
  const std::int64_t oldest = query + 1 - place.window - place.first_key;
  return {std::clamp(oldest, std::int64_t{0}, end), end};
}

template <class T>
void clear_unseen(T* row, Seen keys, std::int64_t width) {
  std::fill(row, row + keys.begin, T());
  std::fill(row + keys.end, row + width, T());
}

void scale_row(float* row, std::int64_t count, float factor) {
  each_vector(count, [&](std::int64_t i, auto part) HWY_ATTR {
    store(hn::Mul(load(row + i, part), hn::Set(F32(), factor)), row + i, part);
  });
}

template <class T>
void softmax_row(const TilePlace& place, const SoftmaxTile& tile, std::int64_t row) {
  const F32 d;
  const Seen keys = seen(place, row);
  const float* scores = tile.scores + row * kKeyTile;
  T* probabilities = static_cast<T*>(tile.probabilities) + row * kKeyTile;
  const float before = tile.first ? -HUGE_VALF : tile.greatest[row];
  const Vec scale = hn::Set(d, place.scale);
  const std::int64_t count = keys.end - keys.begin;
  Vec most = hn::Set(d, before);
  const float* seen_scores = scores + keys.begin;
  each_vector(count, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec score = hn::Mul(load(seen_scores + i, part), scale);
    most = hn::Max(most, fill_rest(score, -HUGE_VALF, part));
  });
  const float greatest = max_lanes(most);
  Vec sum = hn::Zero(d);
  T* seen_probabilities = probabilities + keys.begin;
  each_vector(count, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec score = hn::Mul(load(seen_scores + i, part), scale);
    const Vec p = exp_of(hn::Sub(score, hn::Set(d, greatest)));
    sum = hn::Add(sum, zero_rest(p, part));
    store(p, seen_probabilities + i, part);
  });
  clear_unseen(probabilities, keys, place.width);
  tile.greatest[row] = greatest;
  if (tile.first) {
    tile.sum[row] = sum_lanes(sum);
    return;
  }
  // Nothing was seen before: what is rescaled is zero.
  const float factor = before == -HUGE_VALF ? 1.0F : std::exp(before - greatest);
  tile.sum[row] = tile.sum[row] * factor + sum_lanes(sum);
  if (factor != 1.0F) scale_row(tile.output + row * tile.head_size, tile.head_size, factor);
}

template <class T>
void softmax_backward_row(const TilePlace& place, const SoftmaxBackwardTile& tile,
                          std::int64_t row) {
  const F32 d;
  const Seen keys = seen(place, row);
  const std::int64_t first = row * kKeyTile + keys.begin;
  const float* scores = tile.scores + first;
  const float* d_probabilities = tile.d_probabilities + first;
  T* probabilities = static_cast<T*>(tile.probabilities) + first;
  T* d_scores = static_cast<T*>(tile.d_scores) + first;
  const Vec scale = hn::Set(d, place.scale);
  const Vec log_sum = hn::Set(d, tile.log_sum_exp[row]);
  const Vec delta = hn::Set(d, tile.delta[row]);
  each_vector(keys.end - keys.begin, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec score = hn::Mul(load(scores + i, part), scale);
    const Vec p = exp_of(hn::Sub(score, log_sum));
    const Vec dp = hn::Sub(load(d_probabilities + i, part), delta);
    store(hn::Mul(hn::Mul(p, dp), scale), d_scores + i, part);
    store(p, probabilities + i, part);
  });
  clear_unseen(probabilities - keys.begin, keys, place.width);
  clear_unseen(d_scores - keys.begin, keys, place.width);
}

template <class T>
void finish_row(const TilePlace& /*place*/, const FinishTile& finish, std::int64_t row) {
  const SoftmaxTile& tile = finish.tile;
  const float* output = tile.output + row * tile.head_size;
  T* target = static_cast<T*>(finish.target) + row * finish.target_stride;
  const Vec inverse = hn::Set(F32(), 1.0F / tile.sum[row]);
  each_vector(tile.head_size, [&](std::int64_t i, auto part) HWY_ATTR {
    store(hn::Mul(load(output + i, part), inverse), target + i, part);
  });
  finish.log_sum_exp[row] = tile.greatest[row] + std::log(tile.sum[row]);
}

template <class T>
float row_product(const RowProducts& args, std::int64_t row) {
  const T* a = static_cast<const T*>(args.a) + row * args.stride;
  const T* b = static_cast<const T*>(args.b) + row * args.stride;
  Vec sum = hn::Zero(F32());
  each_vector(args.columns, [&](std::int64_t i, auto part) HWY_ATTR {
    sum = hn::MulAdd(load(a + i, part), load(b + i, part), sum);
  });
  return sum_lanes(sum);
}

}  // namespace

void softmax_rows(const TilePlace& place, const SoftmaxTile& tile) {
  with_type(place.dtype, [&](auto type) HWY_ATTR {
    for (std::int64_t row = 0; row < place.rows; ++row) {
      softmax_row<decltype(type)>(place, tile, row);
    }
  });
}

void finish_rows(const TilePlace& place, const FinishTile& finish) {
  with_type(place.dtype, [&](auto type) HWY_ATTR {
    for (std::int64_t row = 0; row < place.rows; ++row) {
      finish_row<decltype(type)>(place, finish, row);
    }
  });
}

void softmax_backward_rows(const TilePlace& place, const SoftmaxBackwardTile& tile) {
  with_type(place.dtype, [&](auto type) HWY_ATTR {
    for (std::int64_t row = 0; row < place.rows; ++row) {
      softmax_backward_row<decltype(type)>(place, tile, row);
    }
  });
}

void row_products_rows(const RowProducts& args) {
  with_type(args.dtype, [&](auto type) HWY_ATTR {
    for (std::int64_t row = 0; row < args.rows; ++row) {
      args.results[row] = row_product<decltype(type)>(args, row);
    }
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
namespace {
HWY_EXPORT(softmax_rows);
HWY_EXPORT(finish_rows);
HWY_EXPORT(softmax_backward_rows);
HWY_EXPORT(row_products_rows);
}  // namespace

void softmax_tile(CpuTarget cpu, const TilePlace& place, const SoftmaxTile& tile) {
  HWY_DISPATCH_TABLE(softmax_rows)[cpu.table_index()](place, tile);
}
void finish_tile(CpuTarget cpu, const TilePlace& place, const FinishTile& finish) {
  HWY_DISPATCH_TABLE(finish_rows)[cpu.table_index()](place, finish);
}
void softmax_backward_tile(CpuTarget cpu, const TilePlace& place, const SoftmaxBackwardTile& tile) {
  HWY_DISPATCH_TABLE(softmax_backward_rows)[cpu.table_index()](place, tile);
}
void row_products(CpuTarget cpu, const RowProducts& args) {
  HWY_DISPATCH_TABLE(row_products_rows)[cpu.table_index()](args);
}

}  // namespace terrace::kernels
#endif
