#include "cpu/attention_plan.h"

#include <algorithm>

namespace terrace::kernels {
namespace {

/// Makes the products of tiles, and keeps count of the scratch that they need.
class TileProducts {
 public:
  TileProducts(const AttentionShape& shape, Products& products, std::uint64_t& scratch_bytes)
      : shape_(shape), products_(products), scratch_bytes_(scratch_bytes) {}

  AttentionTile make(std::int64_t rows, std::int64_t first_key, std::int64_t width, bool first) {
    const Summand into_rows = first ? Summand::none : Summand::target;
    AttentionTile tile{first_key, width};
    tile.scores = scores(rows, width, shape_.q_stride, shape_.k_stride);
    tile.d_probabilities = scores(rows, width, shape_.output_stride, shape_.v_stride);
    tile.values = of_rows(rows, width, shape_.v_stride, into_rows);
    tile.d_queries = of_rows(rows, width, shape_.k_stride, into_rows);
    tile.d_values = of_keys(rows, width, shape_.output_stride);
    tile.d_keys = of_keys(rows, width, shape_.q_stride);
    return tile;
  }

 private:
  const Product* get(ProductShape shape) {
    shape.dtype = shape_.dtype;
    shape.target_dtype = DType::f32;
    const Product& product = products_.get(shape);
    scratch_bytes_ = std::max(scratch_bytes_, product.scratch_bytes());
    return &product;
  }

  /// [R, W] = x [R, D] y [W, D]^T
  const Product* scores(std::int64_t rows, std::int64_t width, std::int64_t x_stride,
                        std::int64_t y_stride) {
    ProductShape product;
    product.m = rows;
    product.n = width;
    product.k = shape_.head_size;
    product.a_stride = x_stride;
    product.b_stride = y_stride;
    product.b_transposed = true;
    product.target_stride = kKeyTile;
    return get(product);
  }

  /// [R, D] (+)= tile [R, W] y [W, D]
  const Product* of_rows(std::int64_t rows, std::int64_t width, std::int64_t y_stride,
                         Summand summand) {
    ProductShape product;
    product.m = rows;
    product.n = shape_.head_size;
    product.k = width;
    product.a_stride = kKeyTile;
    product.b_stride = y_stride;
    product.target_stride = shape_.head_size;
    product.summand = summand;
    return get(product);
  }

  /// [W, D] += tile [R, W]^T x [R, D]
  const Product* of_keys(std::int64_t rows, std::int64_t width, std::int64_t x_stride) {
    ProductShape product;
    product.m = width;
    product.n = shape_.head_size;
    product.k = rows;
    product.a_stride = kKeyTile;
    product.a_transposed = true;
    product.b_stride = x_stride;
    product.target_stride = shape_.head_size;
    product.summand = Summand::target;
    return get(product);
  }

  const AttentionShape& shape_;
  Products& products_;
  std::uint64_t& scratch_bytes_;
};

}  // namespace

AttentionShape attention_shape(const AttentionArgs& args) {
  return {args.sequence,
          args.head_size,
          args.window,
          args.q_stride,
          args.k_stride,
          args.v_stride,
          args.heads * args.head_size,
          args.q.dtype};
}

AttentionPlan::AttentionPlan(const AttentionShape& shape_in, Products& products) : shape(shape_in) {
  TileProducts make(shape, products, product_scratch_bytes);
  for (std::int64_t first = 0; first < shape.sequence; first += kQueryTile) {
    QueryBlock block{first, std::min(kQueryTile, shape.sequence - first), {}};
    const std::int64_t end = first + block.rows;
    std::int64_t key = 0;
    if (shape.window > 0) {
      // The oldest key that the first query sees, at the beginning of a block of queries: few
      // different tiles.
      key = std::max<std::int64_t>(0, first - shape.window + 1) / kQueryTile * kQueryTile;
    }
    while (key < end) {
      const std::int64_t width = std::min(kKeyTile, end - key);
      block.tiles.push_back(make.make(block.rows, key, width, block.tiles.empty()));
      key += width;
    }
    blocks.push_back(std::move(block));
  }
}

}  // namespace terrace::kernels
