#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "cpu/attention.h"
#include "cpu/loops.h"
#include "cpu/openmp_team.h"
#include "cpu/product.h"
#include "terrace/core/error.h"
#include "terrace/kernels/cpu.h"

namespace terrace::kernels {
namespace {

ProductShape product_shape(const MatmulArgs& args) {
  ProductShape shape;
  shape.m = args.m;
  shape.n = args.n;
  shape.k = args.k;
  shape.a_stride = args.a_stride;
  shape.b_stride = args.b_stride;
  shape.target_stride = args.target_stride;
  shape.dtype = args.a.dtype;
  shape.target_dtype = args.target.dtype;
  shape.a_transposed = args.a_transposed;
  shape.b_transposed = args.b_transposed;
  shape.has_bias = static_cast<bool>(args.bias);
  if (args.accumulate || (args.residual && args.residual.data == args.target.data)) {
    shape.summand = Summand::target;
  } else if (args.residual) {
    shape.summand = Summand::residual;
  }
  return shape;
}

class CpuOps final : public Ops {
 public:
  explicit CpuOps(const CpuOptions& options)
      : library_(product_library()),
        workers_(options.threads),
        loops_{workers_, options.target},
        has_bf16_(library_.has_bf16 && options.bf16_products),
        products_({workers_.threads(), 1, has_bf16_, /*repack=*/true, options.target}),
        attention_(loops_, has_bf16_) {}

  [[nodiscard]] std::string description() const override {
    const std::string bf16 = has_bf16_ ? library_.bf16_implementation : "widened to fp32";
    return fmt::format("cpu: {} (bf16: {}), Highway {}, {} threads", library_.name, bf16,
                       loops_.target.name(), workers_.threads());
  }
  [[nodiscard]] std::string instead_of_native(DType dtype) const override {
    if (dtype == DType::f32) return "";
    if (dtype != DType::bf16) return fmt::format("{} is not computed here.", name_of(dtype));
    if (!has_bf16_) {
      return fmt::format(
          "{} multiplies no bf16 on this CPU: bf16 matrices are widened to fp32 first, which is "
          "exact but slower than fp32 training.",
          library_.name);
    }
    if (library_.native_bf16) return "";
    return fmt::format(
        "This CPU has no bf16 instructions: {} multiplies bf16 by {}, no faster than fp32.",
        library_.name, library_.bf16_implementation);
  }

 protected:
  void enqueue(device::Stream& stream, const Op& op) override {
    std::visit([&](const auto& args) { enqueue_args(stream, args); }, op);
  }

  [[nodiscard]] std::uint64_t size_scratch(const Op& op) override {
    return std::visit(
        [&]<class Args>(const Args& args) -> std::uint64_t {
          if constexpr (WithScratch<Args>) return size_args(args);
          return 0;
        },
        op);
  }

 private:
  template <class Args>
  void enqueue_args(device::Stream& stream, const Args& args) {
    stream.enqueue([this, args] { kernels::run(loops_, args); });
  }
  void enqueue_args(device::Stream& stream, const MatmulArgs& args) {
    const Product& product = products_.get(product_shape(args));
    const ProductOperands operands{args.a.data.raw(),        args.b.data.raw(),
                                   args.target.data.raw(),   args.bias.data.raw(),
                                   args.residual.data.raw(), args.scratch.raw()};
    stream.enqueue([&product, operands] { product.run(0, operands); });
  }
  void enqueue_args(device::Stream& stream, const AttentionArgs& args) {
    const AttentionPlan& plan = attention_.plan(args);
    stream.enqueue([this, &plan, args] { attention_.forward(plan, args); });
  }
  void enqueue_args(device::Stream& stream, const AttentionBackwardArgs& args) {
    const AttentionPlan& plan = attention_.plan(args.forward);
    stream.enqueue([this, &plan, args] { attention_.backward(plan, args); });
  }

  template <class Args>
  [[nodiscard]] std::uint64_t size_args(const Args& args) {
    return kernels::size_scratch(args);
  }
  [[nodiscard]] std::uint64_t size_args(const MatmulArgs& args) {
    ProductShape shape = product_shape(args);
    std::uint64_t bytes = products_.get(shape).scratch_bytes();
    if (args.residual) {
      // Addresses do not count here: the residual may turn out to be the target.
      for (const Summand summand : {Summand::residual, Summand::target}) {
        shape.summand = summand;
        bytes = std::max(bytes, products_.get(shape).scratch_bytes());
      }
    }
    return bytes;
  }
  [[nodiscard]] std::uint64_t size_args(const AttentionArgs& args) {
    return attention_.forward_scratch(attention_.plan(args));
  }
  [[nodiscard]] std::uint64_t size_args(const AttentionBackwardArgs& args) {
    return attention_.backward_scratch(attention_.plan(args.forward));
  }

  ProductLibrary library_;
  Workers workers_;
  Loops loops_;
  bool has_bf16_;
  Products products_;
  Attention attention_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(const CpuOptions& options) {
  require(options.threads >= 1, ErrorKind::usage,
          "The number of compute threads is {}, expected at least 1.", options.threads);
  require_team(options.threads);
  return std::make_unique<CpuOps>(options);
}

}  // namespace terrace::kernels
