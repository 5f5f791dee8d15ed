#pragma once

#include <memory>

#include "cpu/product.h"

// Note "Repacking": in FP32 oneDNN reads operands where they lie, so that a stride of whole pages
// makes all their rows compete for the same few cache lines: half the speed. Copying such an
// operand first costs m k or k n moves against m n k multiplications and gains more than it costs;
// a transposed left side is turned on the way. In bf16 oneDNN copies operands into tiles itself,
// and a copy before only costs. Whether an operand is copied depends on the shape alone, so the
// bits still do.

namespace terrace::kernels {

/// The shape with the operands that are worth it copied, or the shape itself.
[[nodiscard]] ProductShape repacked_shape(const ProductShape& shape);

/// `shape`'s product by way of `inner`, the product of `repacked_shape(shape)`. The copies lie in
/// the scratch memory.
[[nodiscard]] std::unique_ptr<Product> make_repacked_product(const ProductShape& shape,
                                                             std::unique_ptr<Product> inner,
                                                             int threads, CpuTarget cpu);

/// target [columns, rows] = source [rows, columns] transposed, elements of 2 or 4 bytes, on the
/// columns [begin, end) of the source. On the calling thread.
struct Transposition {
  const void* source = nullptr;
  std::int64_t source_stride = 0;
  void* target = nullptr;
  std::int64_t target_stride = 0;
  std::int64_t rows = 0;
  DType dtype = DType::f32;
};
void transpose(CpuTarget cpu, const Transposition& args, std::int64_t begin, std::int64_t end);

}  // namespace terrace::kernels
