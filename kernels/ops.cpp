#include "terrace/kernels/ops.h"

#include <string_view>

#include "terrace/core/error.h"

// What every table refuses: a `check` for each operation, which also makes its strides explicit.

namespace terrace::kernels {
namespace {

/// Where nothing is run yet, operands may have no memory.
enum class Use { size, run };

/// Checks of one call's arguments.
class Check {
 public:
  Check(std::string_view operation, Use use) : operation_(operation), use_(use) {}

  void that(bool holds, std::string_view what) const {
    require(holds, ErrorKind::usage, "{}: {}.", operation_, what);
  }
  void positive(std::string_view name, std::int64_t value) const {
    require(value > 0, ErrorKind::usage, "{}: {} is {}, expected at least 1.", operation_, name,
            value);
  }
  void count(std::string_view name, std::int64_t value) const {
    require(value >= 0, ErrorKind::usage, "{}: {} is {}, expected at least 0.", operation_, name,
            value);
  }
  /// Makes a stride of 0 that of rows end to end.
  void stride(std::string_view name, std::int64_t& stride, std::int64_t columns) const {
    if (stride == 0) stride = columns;
    require(stride >= columns, ErrorKind::usage, "{}: {} is {}, but a row has {} elements.",
            operation_, name, stride, columns);
  }

  void there(std::string_view name, device::Pointer data) const {
    require(use_ == Use::size || data, ErrorKind::usage, "{}: {} is missing.", operation_, name);
  }
  /// An operand of either type that operations compute in.
  void computed(std::string_view name, const View& view) const {
    there(name, view.data);
    float_type(name, view.dtype);
  }
  void float_type(std::string_view name, DType dtype) const {
    require(dtype == DType::f32 || dtype == DType::bf16, ErrorKind::usage,
            "{}: {} is {}, expected fp32 or bf16.", operation_, name, name_of(dtype));
  }
  void of_type(std::string_view name, const View& view, DType expected) const {
    there(name, view.data);
    optional(name, view, expected);
  }
  /// An operand that is left out has any dtype.
  void optional(std::string_view name, const View& view, DType expected) const {
    require(!view || view.dtype == expected, ErrorKind::usage, "{}: {} is {}, expected {}.",
            operation_, name, name_of(view.dtype), name_of(expected));
  }

 private:
  std::string_view operation_;
  Use use_;
};

void check(const Check& check, MatmulArgs& args) {
  check.positive("m", args.m);
  check.positive("n", args.n);
  check.positive("k", args.k);
  check.stride("a_stride", args.a_stride, args.a_transposed ? args.m : args.k);
  check.stride("b_stride", args.b_stride, args.b_transposed ? args.k : args.n);
  check.stride("target_stride", args.target_stride, args.n);
  check.computed("a", args.a);
  check.of_type("b", args.b, args.a.dtype);
  check.there("target", args.target.data);
  check.that(args.target.dtype == args.a.dtype || args.target.dtype == DType::f32,
             "the target has neither the dtype of a and b nor fp32");
  check.optional("bias", args.bias, args.a.dtype);
  check.optional("residual", args.residual, args.target.dtype);
  check.that(!args.accumulate || (args.target.dtype == DType::f32 && !args.residual),
             "accumulate is for fp32 targets without a residual");
}

void check(const Check& check, BiasGradientArgs& args) {
  check.positive("rows", args.rows);
  check.positive("columns", args.columns);
  check.stride("d_y_stride", args.d_y_stride, args.columns);
  check.computed("d_y", args.d_y);
  check.of_type("d_bias", args.d_bias, DType::f32);
}

void check(const Check& check, EmbeddingArgs& args) {
  check.count("rows", args.rows);
  check.count("sequence", args.sequence);
  check.positive("columns", args.columns);
  check.positive("vocabulary", args.vocabulary);
  check.there("tokens", args.tokens);
  check.computed("table", args.table);
  check.optional("positions", args.positions, args.table.dtype);
  check.of_type("output", args.output, args.table.dtype);
}

void check(const Check& check, EmbeddingBackwardArgs& args) {
  check.count("rows", args.rows);
  check.count("sequence", args.sequence);
  check.positive("columns", args.columns);
  check.positive("vocabulary", args.vocabulary);
  check.there("tokens", args.tokens);
  check.computed("d_output", args.d_output);
  check.of_type("d_table", args.d_table, DType::f32);
  check.optional("d_positions", args.d_positions, DType::f32);
  check.that(!args.d_positions || args.position_rows >= args.sequence,
             "the table of positions is shorter than the sequence");
}

void check(const Check& check, NormArgs& args) {
  check.positive("rows", args.rows);
  check.positive("columns", args.columns);
  check.computed("input", args.input);
  check.optional("residual", args.residual, args.input.dtype);
  check.optional("sum", args.sum, args.input.dtype);
  check.of_type("weight", args.weight, args.input.dtype);
  check.optional("bias", args.bias, args.input.dtype);
  check.of_type("output", args.output, args.input.dtype);
  check.that(static_cast<bool>(args.residual) == static_cast<bool>(args.sum),
             "residual and sum go together");
  check.that(static_cast<bool>(args.bias) == (args.kind == NormKind::layer),
             "layer norm has a bias, rms norm has none");
}

void check(const Check& check, NormBackwardArgs& args) {
  check.positive("rows", args.rows);
  check.positive("columns", args.columns);
  check.computed("input", args.input);
  check.of_type("weight", args.weight, args.input.dtype);
  check.there("statistics", args.statistics);
  check.there("d_output", args.d_output.data);
  check.that(args.d_output.dtype == args.input.dtype || args.d_output.dtype == DType::f32,
             "d_output has neither the dtype of input nor fp32");
  check.optional("d_residual", args.d_residual, args.input.dtype);
  check.of_type("d_input", args.d_input, args.input.dtype);
  check.of_type("d_weight", args.d_weight, DType::f32);
  check.optional("d_bias", args.d_bias, DType::f32);
  check.that(static_cast<bool>(args.d_bias) == (args.kind == NormKind::layer),
             "layer norm has a bias, rms norm has none");
}

void check(const Check& check, RotaryArgs& args) {
  check.count("rows", args.rows);
  check.count("sequence", args.sequence);
  check.count("heads", args.heads);
  check.positive("head_size", args.head_size);
  check.that(args.head_size % 2 == 0, "head_size is odd; rotary positions turn pairs");
  check.stride("stride", args.stride, args.heads * args.head_size);
  check.computed("values", args.values);
}

void check(const Check& check, AttentionArgs& args) {
  check.positive("rows", args.rows);
  check.positive("sequence", args.sequence);
  check.positive("kv_heads", args.kv_heads);
  check.positive("head_size", args.head_size);
  check.that(args.heads > 0 && args.heads % args.kv_heads == 0,
             "heads is not a multiple of kv_heads");
  check.that(args.window >= 0, "window is negative");
  check.stride("q_stride", args.q_stride, args.heads * args.head_size);
  check.stride("k_stride", args.k_stride, args.kv_heads * args.head_size);
  check.stride("v_stride", args.v_stride, args.kv_heads * args.head_size);
  check.computed("q", args.q);
  check.of_type("k", args.k, args.q.dtype);
  check.of_type("v", args.v, args.q.dtype);
  check.of_type("output", args.output, args.q.dtype);
  check.there("log_sum_exp", args.log_sum_exp);
}

void check(const Check& operands, AttentionBackwardArgs& args) {
  check(operands, args.forward);
  operands.of_type("d_output", args.d_output, args.forward.q.dtype);
  operands.of_type("d_q", args.d_q, args.forward.q.dtype);
  operands.of_type("d_k", args.d_k, args.forward.q.dtype);
  operands.of_type("d_v", args.d_v, args.forward.q.dtype);
}

void check(const Check& check, SwigluArgs& args) {
  check.count("rows", args.rows);
  check.positive("columns", args.columns);
  check.stride("stride", args.stride, args.columns);
  check.computed("output", args.output);
  check.of_type("gate", args.gate, args.output.dtype);
  check.of_type("up", args.up, args.output.dtype);
}

void check(const Check& check, SwigluBackwardArgs& args) {
  check.count("rows", args.rows);
  check.positive("columns", args.columns);
  check.stride("stride", args.stride, args.columns);
  check.computed("d_output", args.d_output);
  check.of_type("gate", args.gate, args.d_output.dtype);
  check.of_type("up", args.up, args.d_output.dtype);
  check.of_type("d_gate", args.d_gate, args.d_output.dtype);
  check.of_type("d_up", args.d_up, args.d_output.dtype);
  check.optional("output", args.output, args.d_output.dtype);
}

void check(const Check& check, GeluArgs& args) {
  check.count("count", args.count);
  check.computed("input", args.input);
  check.of_type("output", args.output, args.input.dtype);
}

void check(const Check& check, GeluBackwardArgs& args) {
  check.count("count", args.count);
  check.computed("input", args.input);
  check.of_type("d_output", args.d_output, args.input.dtype);
  check.of_type("d_input", args.d_input, args.input.dtype);
  check.optional("output", args.output, args.input.dtype);
}

void check(const Check& check, AddArgs& args) {
  check.count("count", args.count);
  check.computed("a", args.a);
  check.of_type("b", args.b, args.a.dtype);
  check.of_type("output", args.output, args.a.dtype);
}

void check(const Check& check, CrossEntropyArgs& args) {
  check.count("rows", args.rows);
  check.positive("vocabulary", args.vocabulary);
  check.stride("logits_stride", args.logits_stride, args.vocabulary);
  check.stride("gradient_stride", args.gradient_stride, args.vocabulary);
  check.computed("logits", args.logits);
  check.there("targets", args.targets);
  check.there("losses", args.losses);
  check.float_type("gradient", args.gradient.dtype);
}

void check(const Check& check, GatherRowsArgs& args) {
  check.count("count", args.count);
  check.positive("columns", args.columns);
  check.there("indices", args.indices);
  check.there("source", args.source.data);
  check.of_type("output", args.output, args.source.dtype);
}

void check(const Check& check, ConvertArgs& args) {
  check.count("count", args.count);
  check.computed("source", args.source);
  check.computed("output", args.output);
}

void check(const Check& check, SumArgs& args) {
  check.count("count", args.count);
  check.there("values", args.values);
  check.there("sum", args.sum);
}

void check(const Check& check, ClearArgs& args) { check.there("target", args.target); }

/// The operation with explicit strides.
Op checked(Op op, Use use) {
  std::visit([use]<class Args>(Args& args) { check(Check(Args::kName, use), args); }, op);
  return op;
}

}  // namespace

void Ops::run(device::Stream& stream, const Op& op) { enqueue(stream, checked(op, Use::run)); }

std::uint64_t Ops::scratch_bytes(const Op& op) { return size_scratch(checked(op, Use::size)); }

}  // namespace terrace::kernels
