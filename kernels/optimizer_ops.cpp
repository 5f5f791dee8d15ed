#include "terrace/kernels/optimizer_ops.h"

#include "terrace/core/error.h"

namespace terrace::kernels {
namespace {

template <class T>
void check_size(device::Span<T> found, std::int64_t count, std::size_t size,
                std::string_view what) {
  require(found.size() == static_cast<std::size_t>(count) * size, ErrorKind::internal,
          "the optimizer step was given {} bytes of {} for {} parameters, {} expected",
          found.size(), what, count, static_cast<std::size_t>(count) * size);
}

void check(const StepArgs& args) {
  const auto& [rule, layout, chunk, coefficients] = args;
  const bool split = layout.master == MasterFormat::split;
  require(!split || layout.parameter == DType::bf16, ErrorKind::internal,
          "a split master goes with bf16 parameters, not with {}", name_of(layout.parameter));
  require(layout.moments == DType::f32 || layout.moments == DType::bf16, ErrorKind::internal,
          "moments are fp32 or bf16, not {}", name_of(layout.moments));
  require(layout.gradient != DType::i32 && layout.parameter != DType::i32, ErrorKind::internal,
          "a gradient or parameter of int32 has no optimizer step");
  const std::size_t master = size_of(layout.master);
  check_size(chunk.source.master, chunk.count, master, "master");
  check_size(chunk.target.master, chunk.count, master, "new master");
  const std::size_t exp_avg = uses_exp_avg(rule) ? size_of(layout.moments) : 0;
  check_size(chunk.source.exp_avg, chunk.count, exp_avg, "exp_avg");
  check_size(chunk.target.exp_avg, chunk.count, exp_avg, "new exp_avg");
  const std::size_t exp_avg_sq = uses_exp_avg_sq(rule) ? size_of(layout.moments) : 0;
  check_size(chunk.source.exp_avg_sq, chunk.count, exp_avg_sq, "exp_avg_sq");
  check_size(chunk.target.exp_avg_sq, chunk.count, exp_avg_sq, "new exp_avg_sq");
  check_size(chunk.source.gradient, chunk.count, size_of(layout.gradient), "gradient");
  if (split) check_size(chunk.source.parameter, chunk.count, 2, "parameter");
  if (split || !chunk.target.parameter.empty()) {
    check_size(chunk.target.parameter, chunk.count, size_of(layout.parameter), "new parameter");
  }
}

void check(const FirstTouchArgs& args) {
  for (const device::Span<std::byte>& array : args.arrays) {
    require(array.empty() || array.size() % static_cast<std::size_t>(args.count) == 0,
            ErrorKind::internal, "first touch: {} bytes are not those of {} elements", array.size(),
            args.count);
  }
}

/// Of operands that are one array each.
void check_operands(std::string_view operation, std::int64_t count,
                    std::initializer_list<device::Pointer> operands) {
  require(count >= 0, ErrorKind::internal, "{}: the count is {}", operation, count);
  for (const device::Pointer operand : operands) {
    require(static_cast<bool>(operand), ErrorKind::internal, "{}: an operand is missing",
            operation);
  }
}

void check_type(std::string_view operation, DType dtype, bool holds) {
  require(holds, ErrorKind::internal, "{}: an operand is {}", operation, name_of(dtype));
}

void check(const SumSquaresArgs& args) {
  check_operands(args.kName, args.count, {args.values.data, args.result});
  check_type(args.kName, args.values.dtype, args.values.dtype != DType::i32);
}

void check(const SplitMasterArgs& args) {
  check_operands(args.kName, args.count, {args.master, args.parameter, args.remainder});
}

void check(const JoinMasterArgs& args) {
  check_operands(args.kName, args.count, {args.master, args.parameter, args.remainder});
}

void check(const NarrowMasterArgs& args) {
  check_operands(args.kName, args.count, {args.master, args.parameter.data});
  check_type(args.kName, args.parameter.dtype, args.parameter.dtype != DType::i32);
}

void check(const ConvertArgs& args) {
  check_operands(args.kName, args.count, {args.source.data, args.output.data});
  for (const DType dtype : {args.source.dtype, args.output.dtype}) {
    check_type(args.kName, dtype, dtype == DType::f32 || dtype == DType::bf16);
  }
}

}  // namespace

void OptimizerOps::run(device::Stream& stream, const OptimizerOp& op) {
  std::visit([](const auto& args) { check(args); }, op);
  enqueue(stream, op);
}

}  // namespace terrace::kernels
