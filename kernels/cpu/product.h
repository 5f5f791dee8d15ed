#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "terrace/core/dtype.h"
#include "terrace/kernels/cpu_target.h"

// Matrix products by oneDNN. `product_onednn.cpp` alone knows its interface and its versions.

namespace terrace::kernels {

enum class Summand : std::uint8_t { none, target, residual };

/// What a product is, but for its addresses. Strides are explicit; the rest as `MatmulArgs`.
struct ProductShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t a_stride = 0;
  std::int64_t b_stride = 0;
  std::int64_t target_stride = 0;
  DType dtype = DType::f32;         ///< of a, b and bias
  DType target_dtype = DType::f32;  ///< of target and residual
  bool a_transposed = false;
  bool b_transposed = false;
  bool has_bias = false;
  Summand summand = Summand::none;

  friend auto operator<=>(const ProductShape&, const ProductShape&) = default;
};

struct ProductOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* target = nullptr;
  const void* bias = nullptr;
  const void* residual = nullptr;
  void* scratch = nullptr;  ///< `Product::scratch_bytes()`, 64-byte aligned
};

/// One product, made for its shape.
class Product {
 public:
  virtual ~Product() = default;
  [[nodiscard]] virtual std::uint64_t scratch_bytes() const = 0;
  /// Computes at once. Calls with different `slot`s may run at the same time.
  virtual void run(int slot, const ProductOperands& operands) const = 0;
};

/// Makes products and keeps them. Thread-safe; a shape that is known is found without allocation.
class Products {
 public:
  struct Options {
    int threads = 1;        ///< of each product
    int slots = 1;          ///< how many callers each product serves at a time
    bool has_bf16 = false;  ///< false: bf16 operands are widened and multiplied in FP32
    bool repack = false;    ///< copy operands where it pays, see "Repacking"
    CpuTarget target;       ///< of the widening and the copies
  };
  explicit Products(const Options& options);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// Valid as long as this.
  [[nodiscard]] const Product& get(const ProductShape& shape);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What the library and this CPU offer.
struct ProductLibrary {
  std::string name;          ///< "oneDNN 2.6.3"
  bool has_bf16 = false;     ///< it multiplies bf16 on this CPU
  bool native_bf16 = false;  ///< by instructions for it
  std::string bf16_implementation;
};
[[nodiscard]] ProductLibrary product_library();

}  // namespace terrace::kernels
