#pragma once

#include <cstdint>

#include "terrace/core/dtype.h"
#include "terrace/kernels/cpu_target.h"

// The parts of attention between its matrix products, on one tile of scores: queries
// [first_query, first_query + rows) by keys [first_key, first_key + width). On the calling thread.

namespace terrace::kernels {

/// Rows of every array that is a tile of scores lie `kKeyTile` elements apart.
inline constexpr std::int64_t kKeyTile = 512;

struct TilePlace {
  std::int64_t first_query = 0;
  std::int64_t rows = 0;
  std::int64_t first_key = 0;
  std::int64_t width = 0;
  std::int64_t window = 0;  ///< 0: none
  float scale = 0;
  DType dtype = DType::f32;  ///< of probabilities, output and gradients
};

/// One step of the online softmax: reads q k^T from `scores` and writes exp(score - greatest so
/// far) to `probabilities` (zero where a query does not see a key), and rescales what the keys
/// before have left in `output` [rows, head_size]. In FP32 `probabilities` is `scores`.
struct SoftmaxTile {
  float* scores = nullptr;
  void* probabilities = nullptr;
  float* greatest = nullptr;  ///< [rows]
  float* sum = nullptr;       ///< [rows]
  float* output = nullptr;
  std::int64_t head_size = 0;
  bool first = false;  ///< no keys before: greatest, sum and output hold nothing yet
};
void softmax_tile(CpuTarget cpu, const TilePlace& place, const SoftmaxTile& tile);

/// target [rows, head_size] = output / sum, and log_sum_exp = greatest + log(sum).
struct FinishTile {
  SoftmaxTile tile;
  void* target = nullptr;
  std::int64_t target_stride = 0;
  float* log_sum_exp = nullptr;  ///< [rows]
};
void finish_tile(CpuTarget cpu, const TilePlace& place, const FinishTile& finish);

/// From q k^T in `scores` and d_output v^T in `d_probabilities`:
/// p = exp(scale score - log_sum_exp) to `probabilities`, scale p (dp - delta) to `d_scores`. In
/// FP32 these are `scores` and `d_probabilities` themselves.
struct SoftmaxBackwardTile {
  float* scores = nullptr;
  float* d_probabilities = nullptr;
  void* probabilities = nullptr;
  void* d_scores = nullptr;
  const float* log_sum_exp = nullptr;  ///< [rows]
  const float* delta = nullptr;        ///< [rows]
};
void softmax_backward_tile(CpuTarget cpu, const TilePlace& place, const SoftmaxBackwardTile& tile);

/// results [rows] = the inner products of the rows of a and b, `columns` long, `stride` apart.
struct RowProducts {
  const void* a = nullptr;
  const void* b = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
  float* results = nullptr;
};
void row_products(CpuTarget cpu, const RowProducts& args);

}  // namespace terrace::kernels
