#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "cpu/attention_tiles.h"
#include "cpu/product.h"
#include "terrace/kernels/op_args.h"

namespace terrace::kernels {

/// What the tiles of attention depend on. Strides are explicit.
struct AttentionShape {
  std::int64_t sequence = 0;   ///< T
  std::int64_t head_size = 0;  ///< D
  std::int64_t window = 0;
  std::int64_t q_stride = 0;
  std::int64_t k_stride = 0;
  std::int64_t v_stride = 0;
  std::int64_t output_stride = 0;
  DType dtype = DType::f32;

  friend auto operator<=>(const AttentionShape&, const AttentionShape&) = default;
};
[[nodiscard]] AttentionShape attention_shape(const AttentionArgs& args);

/// A tile of scores, R queries by W keys, and the products of one head that it takes part in.
struct AttentionTile {
  std::int64_t first_key = 0;
  std::int64_t width = 0;                    ///< W, at most kKeyTile
  const Product* scores = nullptr;           ///< S [R, W] = q k^T
  const Product* values = nullptr;           ///< O [R, D] (+)= P v
  const Product* d_probabilities = nullptr;  ///< dP [R, W] = d_o v^T
  const Product* d_values = nullptr;         ///< dV [W, D] += P^T d_o
  const Product* d_queries = nullptr;        ///< dQ [R, D] (+)= dS k
  const Product* d_keys = nullptr;           ///< dK [W, D] += dS^T q
};

/// R queries and all the keys that they see, in tiles.
struct QueryBlock {
  std::int64_t first = 0;
  std::int64_t rows = 0;  ///< R, at most kQueryTile
  std::vector<AttentionTile> tiles;
};

/// Queries in a block: enough rows that a product runs near its full rate, few enough that the
/// triangle above the diagonal costs little.
inline constexpr std::int64_t kQueryTile = 128;

struct AttentionPlan {
  AttentionPlan(const AttentionShape& shape_in, Products& products);

  AttentionShape shape;
  std::vector<QueryBlock> blocks;
  std::uint64_t product_scratch_bytes = 0;  ///< the most that one product needs
};

}  // namespace terrace::kernels
