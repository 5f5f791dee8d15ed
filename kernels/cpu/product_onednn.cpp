#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <dnnl.hpp>
#include <future>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "cpu/loops.h"
#include "cpu/openmp_team.h"
#include "cpu/product.h"
#include "cpu/repacked_product.h"
#include "terrace/core/error.h"

namespace terrace::kernels {
namespace {

using dnnl::memory;
using DescribedMatmul = dnnl::matmul::primitive_desc;

memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::desc matrix(std::int64_t rows, std::int64_t columns, DType dtype, std::int64_t stride,
                    bool transposed) {
  const memory::dims strides =
      transposed ? memory::dims{1, stride} : memory::dims{stride, std::int64_t{1}};
  return {memory::dims{rows, columns}, type_of(dtype), strides};
}

/// Here the interfaces of oneDNN 2 and 3 differ.
DescribedMatmul describe(const dnnl::engine& engine, const std::array<memory::desc, 4>& operands,
                         bool has_bias, const dnnl::primitive_attr& attributes) {
  const auto& [a, b, bias, target] = operands;
#if DNNL_VERSION_MAJOR >= 3
  return has_bias ? DescribedMatmul(engine, a, b, bias, target, attributes)
                  : DescribedMatmul(engine, a, b, target, attributes);
#else
  const auto operation =
      has_bias ? dnnl::matmul::desc(a, b, bias, target) : dnnl::matmul::desc(a, b, target);
  return {operation, attributes, engine};
#endif
}

DescribedMatmul describe(const dnnl::engine& engine, const ProductShape& shape) {
  const auto target = matrix(shape.m, shape.n, shape.target_dtype, shape.target_stride, false);
  dnnl::post_ops post;
  if (shape.summand == Summand::target) post.append_sum(1.0F);
  if (shape.summand == Summand::residual) {
    post.append_binary(dnnl::algorithm::binary_add, target);
  }
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  // Said, because a variable of the environment would otherwise allow FP32 to be rounded to bf16.
  attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);
  attributes.set_post_ops(post);
  return describe(engine,
                  {matrix(shape.m, shape.k, shape.dtype, shape.a_stride, shape.a_transposed),
                   matrix(shape.k, shape.n, shape.dtype, shape.b_stride, shape.b_transposed),
                   matrix(1, shape.n, shape.dtype, shape.n, false), target},
                  shape.has_bias, attributes);
}

#if DNNL_VERSION_MAJOR >= 3
/// oneDNN 3.7's "brg_matmul" takes the elements of a vector as neighbours, also where they lie
/// apart, and gives wrong results; its other implementations do not.
void leave_wrong_implementations(DescribedMatmul& description, const ProductShape& shape) {
  const bool has_sparse_vector = (shape.m == 1 && shape.a_transposed && shape.a_stride > 1) ||
                                 (shape.n == 1 && shape.target_stride > 1);
  const auto is_brgemm = [&] {
    return std::string_view(description.impl_info_str()).find("brg") != std::string_view::npos;
  };
  while (has_sparse_vector && is_brgemm() && description.next_impl()) {
  }
}
#else
void leave_wrong_implementations(DescribedMatmul& /*description*/, const ProductShape& /*shape*/) {}
#endif

class OneDnnProduct final : public Product {
 public:
  OneDnnProduct(const dnnl::engine& engine, const ProductShape& shape, int threads, int slots)
      : threads_(threads) {
    const OpenMpTeam team(threads);
    DescribedMatmul description = describe(engine, shape);
    leave_wrong_implementations(description, shape);
    scratch_bytes_ = description.scratchpad_desc().get_size();
    matmul_ = dnnl::matmul(description);
    slots_.reserve(static_cast<std::size_t>(slots));
    for (int i = 0; i < slots; ++i) slots_.emplace_back(engine, description, shape);
  }

  [[nodiscard]] std::uint64_t scratch_bytes() const override { return scratch_bytes_; }

  void run(int slot, const ProductOperands& operands) const override {
    const OpenMpTeam team(threads_);
    slots_[static_cast<std::size_t>(slot)].execute(matmul_, operands);
  }

 private:
  /// Argument objects are made once: executing then allocates nothing of ours.
  class Slot {
   public:
    Slot(const dnnl::engine& engine, const DescribedMatmul& description, const ProductShape& shape)
        : stream_(engine) {
      add(DNNL_ARG_SRC, description.src_desc(), engine, &ProductOperands::a);
      add(DNNL_ARG_WEIGHTS, description.weights_desc(), engine, &ProductOperands::b);
      target_ = memory(description.dst_desc(), engine, nullptr);
      arguments_[count_++] = {DNNL_ARG_DST, target_.get()};
      scratch_ = memory(description.scratchpad_desc(), engine, nullptr);
      arguments_[count_++] = {DNNL_ARG_SCRATCHPAD, scratch_.get()};
      if (shape.has_bias) {
        add(DNNL_ARG_BIAS, description.bias_desc(), engine, &ProductOperands::bias);
      }
      if (shape.summand == Summand::residual) {
        add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, description.dst_desc(), engine,
            &ProductOperands::residual);
      }
    }

    void execute(const dnnl::matmul& matmul, const ProductOperands& operands) const {
      for (const Input& input : inputs_) {
        // oneDNN takes what it only reads as `void*` too.
        input.object.set_data_handle(const_cast<void*>(operands.*input.member));
      }
      target_.set_data_handle(operands.target);
      scratch_.set_data_handle(operands.scratch);
      dnnl::error::wrap_c_api(dnnl_primitive_execute(matmul.get(), stream_.get(),
                                                     static_cast<int>(count_), arguments_.data()),
                              "a matrix product failed");
    }

   private:
    struct Input {
      memory object;
      const void* ProductOperands::*member;
    };

    void add(int argument, const memory::desc& description, const dnnl::engine& engine,
             const void* ProductOperands::*member) {
      inputs_.push_back({memory(description, engine, nullptr), member});
      arguments_[count_++] = {argument, inputs_.back().object.get()};
    }

    dnnl::stream stream_;
    std::vector<Input> inputs_;
    memory target_;
    memory scratch_;
    std::array<dnnl_exec_arg_t, 6> arguments_{};
    std::size_t count_ = 0;
  };

  int threads_;
  std::uint64_t scratch_bytes_ = 0;
  dnnl::matmul matmul_;
  std::vector<Slot> slots_;
};

/// A bf16 product on a CPU for which oneDNN has none: the operands are widened, exactly, into the
/// scratch memory, and an FP32 target is rounded once.
class WidenedProduct final : public Product {
 public:
  WidenedProduct(const dnnl::engine& engine, const ProductShape& shape,
                 const Products::Options& options)
      : shape_(shape),
        a_rows_(shape.a_transposed ? shape.k : shape.m),
        b_rows_(shape.b_transposed ? shape.n : shape.k),
        threads_(options.threads),
        cpu_(options.target),
        product_(engine, widened(shape), options.threads, options.slots) {}

  [[nodiscard]] std::uint64_t scratch_bytes() const override {
    return product_.scratch_bytes() +
           (a_floats() + b_floats() + target_floats() + bias_floats()) * sizeof(float);
  }

  void run(int slot, const ProductOperands& operands) const override {
    auto* free = static_cast<float*>(operands.scratch);
    auto take = [&](std::uint64_t floats) { return std::exchange(free, free + floats); };
    ProductOperands wide = operands;
    float* a = take(a_floats());
    copy(a, a_columns(), DType::f32, operands.a, shape_.a_stride, DType::bf16, a_rows_,
         a_columns());
    float* b = take(b_floats());
    copy(b, b_columns(), DType::f32, operands.b, shape_.b_stride, DType::bf16, b_rows_,
         b_columns());
    wide.a = a;
    wide.b = b;
    if (shape_.has_bias) {
      float* bias = take(bias_floats());
      copy(bias, shape_.n, DType::f32, operands.bias, shape_.n, DType::bf16, 1, shape_.n);
      wide.bias = bias;
    }
    if (shape_.target_dtype == DType::bf16) wide.target = take(target_floats());
    widen_summand(operands, wide);
    wide.scratch = free;
    product_.run(slot, wide);
    if (shape_.target_dtype == DType::bf16) {
      copy(operands.target, shape_.target_stride, DType::bf16, wide.target, shape_.n, DType::f32,
           shape_.m, shape_.n);
    }
  }

 private:
  /// Multiples of 64 bytes, so that each part of the scratch is aligned.
  static std::uint64_t padded(std::int64_t floats) {
    return static_cast<std::uint64_t>((floats + 15) / 16 * 16);
  }
  [[nodiscard]] std::int64_t a_columns() const { return shape_.a_transposed ? shape_.m : shape_.k; }
  [[nodiscard]] std::int64_t b_columns() const { return shape_.b_transposed ? shape_.k : shape_.n; }
  [[nodiscard]] std::uint64_t a_floats() const { return padded(a_rows_ * a_columns()); }
  [[nodiscard]] std::uint64_t b_floats() const { return padded(b_rows_ * b_columns()); }
  [[nodiscard]] std::uint64_t bias_floats() const { return shape_.has_bias ? padded(shape_.n) : 0; }
  [[nodiscard]] std::uint64_t target_floats() const {
    return shape_.target_dtype == DType::bf16 ? padded(shape_.m * shape_.n) : 0;
  }

  static ProductShape widened(const ProductShape& shape) {
    ProductShape wide = shape;
    wide.dtype = DType::f32;
    wide.a_stride = shape.a_transposed ? shape.m : shape.k;
    wide.b_stride = shape.b_transposed ? shape.k : shape.n;
    if (shape.target_dtype == DType::bf16) {
      wide.target_dtype = DType::f32;
      wide.target_stride = shape.n;
      // A bf16 summand is widened into the FP32 target first.
      if (shape.summand != Summand::none) wide.summand = Summand::target;
    }
    return wide;
  }

  void widen_summand(const ProductOperands& operands, ProductOperands& wide) const {
    if (shape_.target_dtype != DType::bf16 || shape_.summand == Summand::none) return;
    const void* summand = shape_.summand == Summand::residual ? operands.residual : operands.target;
    copy(wide.target, shape_.n, DType::f32, summand, shape_.target_stride, DType::bf16, shape_.m,
         shape_.n);
  }

  void copy(void* to, std::int64_t to_stride, DType to_type, const void* from,
            std::int64_t from_stride, DType from_type, std::int64_t rows,
            std::int64_t columns) const {
    const View target{device::Pointer(to), to_type};
    const View source{device::Pointer(const_cast<void*>(from)), from_type};
#pragma omp parallel for num_threads(threads_) if (threads_ > 1)
    for (std::int64_t row = 0; row < rows; ++row) {
      convert_serially(cpu_, target.offset(row * to_stride), source.offset(row * from_stride),
                       columns);
    }
  }

  ProductShape shape_;
  std::int64_t a_rows_;
  std::int64_t b_rows_;
  int threads_;
  CpuTarget cpu_;
  OneDnnProduct product_;
};

}  // namespace

struct Products::Impl {
  Options options;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::mutex mutex;
  std::map<ProductShape, std::unique_ptr<Product>> products;

  std::unique_ptr<Product> make(const ProductShape& shape) const {
    if (is_in_openmp_region()) {
      return std::async(std::launch::async, [&] { return make(shape); }).get();
    }
    if (options.repack && (shape.dtype == DType::f32 || options.has_bf16)) {
      const ProductShape packed = repacked_shape(shape);
      if (packed != shape) {
        return make_repacked_product(shape, make_as_it_lies(packed), options.threads,
                                     options.target);
      }
    }
    return make_as_it_lies(shape);
  }

  std::unique_ptr<Product> make_as_it_lies(const ProductShape& shape) const {
    try {
      if (shape.dtype == DType::bf16 && !options.has_bf16) {
        return std::make_unique<WidenedProduct>(engine, shape, options);
      }
      return std::make_unique<OneDnnProduct>(engine, shape, options.threads, options.slots);
    } catch (const dnnl::error& error) {
      fail(ErrorKind::internal, "oneDNN cannot multiply [{}, {}] by [{}, {}] in {}: {}.", shape.m,
           shape.k, shape.k, shape.n, name_of(shape.dtype), error.what());
    }
  }
};

Products::Products(const Options& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
}
Products::~Products() = default;

const Product& Products::get(const ProductShape& shape) {
  const std::scoped_lock lock(impl_->mutex);
  const auto found = impl_->products.find(shape);
  if (found != impl_->products.end()) return *found->second;
  return *impl_->products.emplace(shape, impl_->make(shape)).first->second;
}

ProductLibrary product_library() {
  const dnnl_version_t* version = dnnl_version();
  ProductLibrary library;
  library.name = fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
  ProductShape shape;
  shape.m = shape.n = shape.k = shape.a_stride = shape.b_stride = shape.target_stride = 64;
  shape.dtype = shape.target_dtype = DType::bf16;
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    library.bf16_implementation = describe(engine, shape).impl_info_str();
    // Its plain reference loops are slower than widening is.
    library.has_bf16 = library.bf16_implementation.find("ref") == std::string::npos;
  } catch (const dnnl::error&) {
    return library;
  }
#if defined(__x86_64__)
  // Every set of instructions has the bits of those that it contains.
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto bf16 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  library.native_bf16 = library.has_bf16 && (isa & bf16) == bf16;
#else
  library.native_bf16 = library.has_bf16;
#endif
  return library;
}

}  // namespace terrace::kernels
