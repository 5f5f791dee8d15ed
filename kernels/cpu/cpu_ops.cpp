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

std::int64_t or_dense(std::int64_t stride, std::int64_t dense) {
  return stride != 0 ? stride : dense;
}

/// Checks of one call's arguments.
class Check {
 public:
  explicit Check(std::string_view operation) : operation_(operation) {}

  void positive(std::string_view name, std::int64_t value) const {
    require(value > 0, ErrorKind::usage, "{}: {} is {}, expected at least 1.", operation_, name,
            value);
  }
  void that(bool holds, std::string_view what) const {
    require(holds, ErrorKind::usage, "{}: {}.", operation_, what);
  }
  void float_type(std::string_view name, DType dtype) const {
    require(dtype == DType::f32 || dtype == DType::bf16, ErrorKind::usage,
            "{}: {} is {}, expected fp32 or bf16.", operation_, name, name_of(dtype));
  }
  /// An optional operand that is left out has any dtype.
  void type(std::string_view name, const View& view, DType expected) const {
    require(!view || view.dtype == expected, ErrorKind::usage, "{}: {} is {}, expected {}.",
            operation_, name, name_of(view.dtype), name_of(expected));
  }

 private:
  std::string_view operation_;
};

ProductShape product_shape(const MatmulArgs& args) {
  ProductShape shape;
  shape.m = args.m;
  shape.n = args.n;
  shape.k = args.k;
  shape.a_stride = or_dense(args.a_stride, args.a_transposed ? args.m : args.k);
  shape.b_stride = or_dense(args.b_stride, args.b_transposed ? args.k : args.n);
  shape.target_stride = or_dense(args.target_stride, args.n);
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

void check(const MatmulArgs& args) {
  const Check check("matmul");
  check.positive("m", args.m);
  check.positive("n", args.n);
  check.positive("k", args.k);
  check.float_type("a", args.a.dtype);
  check.that(args.b.dtype == args.a.dtype, "a and b are of different dtypes");
  check.that(args.target.dtype == args.a.dtype || args.target.dtype == DType::f32,
             "the target has neither the dtype of a and b nor fp32");
  check.type("bias", args.bias, args.a.dtype);
  check.type("residual", args.residual, args.target.dtype);
  check.that(!args.accumulate || (args.target.dtype == DType::f32 && !args.residual),
             "accumulate is for fp32 targets without a residual");
}

void check(const NormArgs& args) {
  const Check check("norm_forward");
  check.positive("rows", args.rows);
  check.positive("columns", args.columns);
  check.float_type("input", args.input.dtype);
  check.type("residual", args.residual, args.input.dtype);
  check.type("sum", args.sum, args.input.dtype);
  check.type("weight", args.weight, args.input.dtype);
  check.type("bias", args.bias, args.input.dtype);
  check.type("output", args.output, args.input.dtype);
  check.that(static_cast<bool>(args.residual) == static_cast<bool>(args.sum),
             "residual and sum go together");
  check.that(static_cast<bool>(args.bias) == (args.kind == NormKind::layer),
             "layer norm has a bias, rms norm has none");
}

void check(const NormBackwardArgs& args) {
  const Check check("norm_backward");
  check.positive("rows", args.rows);
  check.positive("columns", args.columns);
  check.float_type("input", args.input.dtype);
  check.type("weight", args.weight, args.input.dtype);
  check.that(args.d_output.dtype == args.input.dtype || args.d_output.dtype == DType::f32,
             "d_output has neither the dtype of input nor fp32");
  check.type("d_residual", args.d_residual, args.input.dtype);
  check.type("d_input", args.d_input, args.input.dtype);
  check.type("d_weight", args.d_weight, DType::f32);
  check.type("d_bias", args.d_bias, DType::f32);
  check.that(static_cast<bool>(args.d_bias) == (args.kind == NormKind::layer),
             "layer norm has a bias, rms norm has none");
}

void check(const AttentionArgs& args, std::string_view operation) {
  const Check check(operation);
  check.positive("rows", args.rows);
  check.positive("sequence", args.sequence);
  check.positive("kv_heads", args.kv_heads);
  check.positive("head_size", args.head_size);
  check.that(args.heads > 0 && args.heads % args.kv_heads == 0,
             "heads is not a multiple of kv_heads");
  check.that(args.window >= 0, "window is negative");
  check.float_type("q", args.q.dtype);
  check.type("k", args.k, args.q.dtype);
  check.type("v", args.v, args.q.dtype);
  check.type("output", args.output, args.q.dtype);
}

void check(const EmbeddingArgs& args) {
  const Check check("embedding_forward");
  check.positive("columns", args.columns);
  check.positive("vocabulary", args.vocabulary);
  check.float_type("table", args.table.dtype);
  check.type("positions", args.positions, args.table.dtype);
  check.type("output", args.output, args.table.dtype);
}

void check(const EmbeddingBackwardArgs& args) {
  const Check check("embedding_backward");
  check.positive("columns", args.columns);
  check.positive("vocabulary", args.vocabulary);
  check.float_type("d_output", args.d_output.dtype);
  check.type("d_table", args.d_table, DType::f32);
  check.type("d_positions", args.d_positions, DType::f32);
  check.that(!args.d_positions || args.position_rows >= args.sequence,
             "the table of positions is shorter than the sequence");
}

class CpuOps final : public Ops {
 public:
  CpuOps(const CpuOptions& options, Log& log)
      : library_(product_library()),
        workers_(options.threads),
        loops_{workers_, options.target},
        has_bf16_(library_.has_bf16 && options.bf16_products),
        products_({workers_.threads(), 1, has_bf16_, /*repack=*/true, options.target}),
        attention_(loops_, has_bf16_) {
    if (!has_bf16_) {
      log.fallback(
          "bf16 products",
          fmt::format("{} multiplies no bf16 on this CPU: bf16 matrices are widened to fp32 "
                      "first, which is exact but slower than fp32 training.",
                      library_.name));
    } else if (!library_.native_bf16) {
      log.fallback("bf16 products",
                   fmt::format("This CPU has no bf16 instructions: {} multiplies bf16 by {}, no "
                               "faster than fp32.",
                               library_.name, library_.bf16_implementation));
    }
  }

  [[nodiscard]] std::string description() const override {
    const std::string bf16 = has_bf16_ ? library_.bf16_implementation : "widened to fp32";
    return fmt::format("cpu: {} (bf16: {}), Highway {}, {} threads", library_.name, bf16,
                       loops_.target.name(), workers_.threads());
  }
  [[nodiscard]] bool native(DType dtype) const override {
    return dtype == DType::f32 || (dtype == DType::bf16 && has_bf16_ && library_.native_bf16);
  }

  void matmul(device::Stream& stream, const MatmulArgs& args) override {
    check(args);
    const Product& product = products_.get(product_shape(args));
    const ProductOperands operands{args.a.data.raw(),        args.b.data.raw(),
                                   args.target.data.raw(),   args.bias.data.raw(),
                                   args.residual.data.raw(), args.scratch.raw()};
    stream.enqueue([&product, operands] { product.run(0, operands); });
  }

  [[nodiscard]] std::uint64_t matmul_scratch_bytes(const MatmulArgs& args) override {
    check(args);
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

  void bias_gradient(device::Stream& stream, const BiasGradientArgs& given) override {
    const Check check("bias_gradient");
    check.positive("rows", given.rows);
    check.positive("columns", given.columns);
    check.float_type("d_y", given.d_y.dtype);
    check.type("d_bias", given.d_bias, DType::f32);
    BiasGradientArgs args = given;
    args.d_y_stride = or_dense(args.d_y_stride, args.columns);
    stream.enqueue([this, args] { kernels::bias_gradient(loops_, args); });
  }
  [[nodiscard]] std::uint64_t bias_gradient_scratch_bytes(const BiasGradientArgs& args) override {
    return bias_gradient_scratch(args);
  }

  void embedding_forward(device::Stream& stream, const EmbeddingArgs& args) override {
    check(args);
    stream.enqueue([this, args] { kernels::embedding_forward(loops_, args); });
  }
  void embedding_backward(device::Stream& stream, const EmbeddingBackwardArgs& args) override {
    check(args);
    stream.enqueue([this, args] { kernels::embedding_backward(loops_, args); });
  }
  [[nodiscard]] std::uint64_t embedding_backward_scratch_bytes(
      const EmbeddingBackwardArgs& args) override {
    return embedding_backward_scratch(args);
  }

  void norm_forward(device::Stream& stream, const NormArgs& args) override {
    check(args);
    stream.enqueue([this, args] { kernels::norm_forward(loops_, args); });
  }
  void norm_backward(device::Stream& stream, const NormBackwardArgs& args) override {
    check(args);
    stream.enqueue([this, args] { kernels::norm_backward(loops_, args); });
  }
  [[nodiscard]] std::uint64_t norm_backward_scratch_bytes(const NormBackwardArgs& args) override {
    return norm_backward_scratch(args);
  }

  void rotary(device::Stream& stream, const RotaryArgs& given) override {
    const Check check("rotary");
    check.positive("head_size", given.head_size);
    check.that(given.head_size % 2 == 0, "head_size is odd; rotary positions turn pairs");
    check.float_type("values", given.values.dtype);
    RotaryArgs args = given;
    args.stride = or_dense(args.stride, args.heads * args.head_size);
    stream.enqueue([this, args] { kernels::rotary(loops_, args); });
  }

  void attention_forward(device::Stream& stream, const AttentionArgs& args) override {
    check(args, "attention_forward");
    const AttentionPlan& plan = attention_.plan(args);
    stream.enqueue([this, &plan, args] { attention_.forward(plan, args); });
  }
  [[nodiscard]] std::uint64_t attention_forward_scratch_bytes(const AttentionArgs& args) override {
    check(args, "attention_forward");
    return attention_.forward_scratch(attention_.plan(args));
  }
  void attention_backward(device::Stream& stream, const AttentionBackwardArgs& args) override {
    check(args.forward, "attention_backward");
    const AttentionPlan& plan = attention_.plan(args.forward);
    stream.enqueue([this, &plan, args] { attention_.backward(plan, args); });
  }
  [[nodiscard]] std::uint64_t attention_backward_scratch_bytes(
      const AttentionBackwardArgs& args) override {
    check(args.forward, "attention_backward");
    return attention_.backward_scratch(attention_.plan(args.forward));
  }

  void swiglu_forward(device::Stream& stream, const SwigluArgs& given) override {
    SwigluArgs args = given;
    args.stride = or_dense(args.stride, args.columns);
    const Check check("swiglu_forward");
    check.positive("columns", args.columns);
    check.float_type("output", args.output.dtype);
    check.type("gate", args.gate, args.output.dtype);
    check.type("up", args.up, args.output.dtype);
    stream.enqueue([this, args] { kernels::swiglu_forward(loops_, args); });
  }
  void swiglu_backward(device::Stream& stream, const SwigluBackwardArgs& given) override {
    SwigluBackwardArgs args = given;
    args.stride = or_dense(args.stride, args.columns);
    const Check check("swiglu_backward");
    check.positive("columns", args.columns);
    check.float_type("d_output", args.d_output.dtype);
    for (const View& view : {args.gate, args.up, args.d_gate, args.d_up, args.output}) {
      check.type("an operand", view, args.d_output.dtype);
    }
    stream.enqueue([this, args] { kernels::swiglu_backward(loops_, args); });
  }

  void gelu_forward(device::Stream& stream, const GeluArgs& args) override {
    const Check check("gelu_forward");
    check.float_type("input", args.input.dtype);
    check.type("output", args.output, args.input.dtype);
    stream.enqueue([this, args] { kernels::gelu_forward(loops_, args); });
  }
  void gelu_backward(device::Stream& stream, const GeluBackwardArgs& args) override {
    const Check check("gelu_backward");
    check.float_type("input", args.input.dtype);
    for (const View& view : {args.d_output, args.d_input, args.output}) {
      check.type("an operand", view, args.input.dtype);
    }
    stream.enqueue([this, args] { kernels::gelu_backward(loops_, args); });
  }
  void add(device::Stream& stream, const AddArgs& args) override {
    const Check check("add");
    check.float_type("a", args.a.dtype);
    check.type("b", args.b, args.a.dtype);
    check.type("output", args.output, args.a.dtype);
    stream.enqueue([this, args] { kernels::add(loops_, args); });
  }

  void cross_entropy(device::Stream& stream, const CrossEntropyArgs& given) override {
    const Check check("cross_entropy");
    check.positive("vocabulary", given.vocabulary);
    check.float_type("logits", given.logits.dtype);
    check.float_type("gradient", given.gradient.dtype);
    CrossEntropyArgs args = given;
    args.logits_stride = or_dense(args.logits_stride, args.vocabulary);
    args.gradient_stride = or_dense(args.gradient_stride, args.vocabulary);
    stream.enqueue([this, args] { kernels::cross_entropy(loops_, args); });
  }
  void sum_f64(device::Stream& stream, device::Pointer values, std::int64_t count,
               device::Pointer sum) override {
    stream.enqueue([=] { *sum.raw<double>() = kernels::sum_f64(values.raw<float>(), count); });
  }

  void gather_rows(device::Stream& stream, const GatherRowsArgs& args) override {
    Check("gather_rows").type("output", args.output, args.source.dtype);
    stream.enqueue([this, args] { kernels::gather_rows(loops_, args); });
  }
  void convert(device::Stream& stream, View target, View source, std::int64_t count) override {
    Check("convert").float_type("target", target.dtype);
    Check("convert").float_type("source", source.dtype);
    stream.enqueue([=, this] { kernels::convert(loops_, target, source, count); });
  }
  void clear(device::Stream& stream, device::Pointer target, std::uint64_t bytes) override {
    stream.enqueue([=, this] {
      workers_.parallel_for(static_cast<std::int64_t>(bytes), std::int64_t{1} << 20,
                            [&](std::int64_t begin, std::int64_t end) {
                              std::fill(target.raw() + begin, target.raw() + end, std::byte{0});
                            });
    });
  }

 private:
  ProductLibrary library_;
  Workers workers_;
  Loops loops_;
  bool has_bf16_;
  Products products_;
  Attention attention_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(const CpuOptions& options, Log& log) {
  require(options.threads >= 1, ErrorKind::usage,
          "The number of compute threads is {}, expected at least 1.", options.threads);
  require_team(options.threads);
  return std::make_unique<CpuOps>(options, log);
}

}  // namespace terrace::kernels
