#include "cpu/repacked_product.h"

#include <algorithm>
#include <cstring>

namespace terrace::kernels {
namespace {

constexpr std::int64_t kPageBytes = 4096;
constexpr std::int64_t kLineBytes = 64;
/// Columns that one task transposes: whole cache lines of either dtype.
constexpr std::int64_t kStrip = 32;
/// Below this a product is over before a copy has paid.
constexpr std::int64_t kSmall = 64;

std::int64_t bytes_of(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(size_of(dtype));
}

bool competes(std::int64_t stride, DType dtype) {
  return bytes_of(stride, dtype) % kPageBytes == 0;
}

/// Whole cache lines, an odd number of them.
std::int64_t good_stride(std::int64_t columns, DType dtype) {
  const std::int64_t lines = (bytes_of(columns, dtype) + kLineBytes - 1) / kLineBytes;
  return (lines | 1) * kLineBytes / bytes_of(1, dtype);
}

class RepackedProduct final : public Product {
 public:
  RepackedProduct(const ProductShape& shape, std::unique_ptr<Product> inner, int threads,
                  CpuTarget cpu)
      : shape_(shape),
        packed_(repacked_shape(shape)),
        inner_(std::move(inner)),
        threads_(threads),
        cpu_(cpu) {}

  [[nodiscard]] std::uint64_t scratch_bytes() const override {
    return a_bytes() + b_bytes() + inner_->scratch_bytes();
  }

  void run(int slot, const ProductOperands& operands) const override {
    ProductOperands packed = operands;
    auto* a = static_cast<std::byte*>(operands.scratch);
    std::byte* b = a + a_bytes();
    if (a_bytes() > 0) {
      transpose_a(operands.a, a);
      packed.a = a;
    }
    if (b_bytes() > 0) {
      copy_b(static_cast<const std::byte*>(operands.b), b);
      packed.b = b;
    }
    packed.scratch = b + b_bytes();
    inner_->run(slot, packed);
  }

 private:
  [[nodiscard]] std::uint64_t a_bytes() const {
    if (packed_.a_transposed == shape_.a_transposed) return 0;
    return static_cast<std::uint64_t>(bytes_of(shape_.m * packed_.a_stride, shape_.dtype));
  }
  [[nodiscard]] std::uint64_t b_bytes() const {
    if (packed_.b_stride == shape_.b_stride) return 0;
    return static_cast<std::uint64_t>(bytes_of(shape_.k * packed_.b_stride, shape_.dtype));
  }

  void transpose_a(const void* from, void* to) const {
    const Transposition args{from, shape_.a_stride, to, packed_.a_stride, shape_.k, shape_.dtype};
#pragma omp parallel for num_threads(threads_) if (threads_ > 1)
    for (std::int64_t begin = 0; begin < shape_.m; begin += kStrip) {
      transpose(cpu_, args, begin, std::min(begin + kStrip, shape_.m));
    }
  }

  void copy_b(const std::byte* from, std::byte* to) const {
    const std::int64_t from_row = bytes_of(shape_.b_stride, shape_.dtype);
    const std::int64_t to_row = bytes_of(packed_.b_stride, shape_.dtype);
    const auto row_bytes = static_cast<std::size_t>(bytes_of(shape_.n, shape_.dtype));
#pragma omp parallel for num_threads(threads_) if (threads_ > 1)
    for (std::int64_t row = 0; row < shape_.k; ++row) {
      std::memcpy(to + row * to_row, from + row * from_row, row_bytes);
    }
  }

  ProductShape shape_;
  ProductShape packed_;
  std::unique_ptr<Product> inner_;
  int threads_;
  CpuTarget cpu_;
};

}  // namespace

ProductShape repacked_shape(const ProductShape& shape) {
  ProductShape packed = shape;
  if (std::min({shape.m, shape.n, shape.k}) < kSmall) return packed;
  // oneDNN copies bf16 operands into tiles itself, whichever way they lie.
  if (shape.dtype == DType::bf16) return packed;
  if (shape.a_transposed && competes(shape.a_stride, shape.dtype)) {
    packed.a_transposed = false;
    packed.a_stride = good_stride(shape.k, shape.dtype);
  }
  if (!shape.b_transposed && competes(shape.b_stride, shape.dtype)) {
    packed.b_stride = good_stride(shape.n, shape.dtype);
  }
  return packed;
}

std::unique_ptr<Product> make_repacked_product(const ProductShape& shape,
                                               std::unique_ptr<Product> inner, int threads,
                                               CpuTarget cpu) {
  return std::make_unique<RepackedProduct>(shape, std::move(inner), threads, cpu);
}

}  // namespace terrace::kernels
