#pragma once

#include <algorithm>
#include <cstdint>

namespace terrace::kernels {

/// The fixed tree of a sum over rows: the rows fall into blocks by their number alone; a block is
/// summed in order, and then the blocks are, so the bits do not depend on threads. At most 64
/// blocks bound the memory for their sums; at least 8 rows a block make them worth while.
struct RowBlocks {
  explicit RowBlocks(std::int64_t rows_in)
      : rows(rows_in),
        block_rows(std::max<std::int64_t>(8, (rows_in + 63) / 64)),
        count((rows_in + block_rows - 1) / block_rows) {}

  [[nodiscard]] std::int64_t begin(std::int64_t block) const { return block * block_rows; }
  [[nodiscard]] std::int64_t end(std::int64_t block) const {
    return std::min(rows, (block + 1) * block_rows);
  }

  std::int64_t rows;
  std::int64_t block_rows;
  std::int64_t count;
};

/// target [columns] (+)= the sum of partials [blocks, columns].
struct BlockSum {
  const float* partials = nullptr;
  std::int64_t blocks = 0;
  std::int64_t columns = 0;
  float* target = nullptr;
  bool accumulate = false;
};

}  // namespace terrace::kernels
