#include <algorithm>

#include "cpu/loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/pointwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {

/// y = silu(gate) * up, rows [begin, end).
template <class T>
void swiglu_forward_rows(const SwigluArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const T* gate = args.gate.data.raw<T>() + row * args.stride;
    const T* up = args.up.data.raw<T>() + row * args.stride;
    T* output = args.output.data.raw<T>() + row * args.columns;
    each_vector(args.columns, [&](std::int64_t i, auto part) HWY_ATTR {
      const Vec g = load(gate + i, part);
      const Vec silu = hn::Mul(g, sigmoid(g).value);
      store(hn::Mul(silu, load(up + i, part)), output + i, part);
    });
  }
}

/// d silu(g) = s + g s (1 - s), s the sigmoid of g.
template <class T>
void swiglu_backward_rows(const SwigluBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const T* gate = args.gate.data.raw<T>() + row * args.stride;
    const T* up = args.up.data.raw<T>() + row * args.stride;
    const T* d_output = args.d_output.data.raw<T>() + row * args.columns;
    T* d_gate = args.d_gate.data.raw<T>() + row * args.stride;
    T* d_up = args.d_up.data.raw<T>() + row * args.stride;
    T* output = args.output ? args.output.data.raw<T>() + row * args.columns : nullptr;
    each_vector(args.columns, [&](std::int64_t i, auto part) HWY_ATTR {
      const Vec g = load(gate + i, part);
      const Vec u = load(up + i, part);
      const Vec dy = load(d_output + i, part);
      const Sigmoid s = sigmoid(g);
      const Vec silu = hn::Mul(g, s.value);
      const Vec slope = hn::MulAdd(silu, s.complement, s.value);
      store(hn::Mul(hn::Mul(dy, u), slope), d_gate + i, part);
      store(hn::Mul(dy, silu), d_up + i, part);
      if (output != nullptr) store(hn::Mul(silu, u), output + i, part);
    });
  }
}

/// 0.5 (1 + tanh(z)) = sigmoid(2z), so gelu(x) = x sigmoid(2z), z = sqrt(2/pi) (x + 0.044715 x^3).
constexpr float kGeluSlope = 1.5957691216057308F;  // 2 sqrt(2/pi)
constexpr float kGeluCubic = 0.044715F;

HWY_INLINE Sigmoid gelu_gate(Vec x, Vec square) {
  const F32 d;
  const Vec inner = hn::MulAdd(hn::Mul(square, hn::Set(d, kGeluCubic)), x, x);
  return sigmoid(hn::Mul(inner, hn::Set(d, kGeluSlope)));
}

template <class T>
void gelu_forward_range(const GeluArgs& args, std::int64_t begin, std::int64_t end) {
  const T* input = args.input.data.raw<T>() + begin;
  T* output = args.output.data.raw<T>() + begin;
  each_vector(end - begin, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec x = load(input + i, part);
    store(hn::Mul(x, gelu_gate(x, hn::Mul(x, x)).value), output + i, part);
  });
}

template <class T>
void gelu_backward_range(const GeluBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  const F32 d;
  const T* input = args.input.data.raw<T>() + begin;
  const T* d_output = args.d_output.data.raw<T>() + begin;
  T* d_input = args.d_input.data.raw<T>() + begin;
  T* output = args.output ? args.output.data.raw<T>() + begin : nullptr;
  each_vector(end - begin, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec x = load(input + i, part);
    const Vec dy = load(d_output + i, part);
    const Vec square = hn::Mul(x, x);
    const Sigmoid s = gelu_gate(x, square);
    const Vec y = hn::Mul(x, s.value);
    // d (2z) / dx = slope (1 + 3 cubic x^2)
    const Vec inner =
        hn::MulAdd(square, hn::Set(d, 3 * kGeluCubic * kGeluSlope), hn::Set(d, kGeluSlope));
    const Vec slope = hn::MulAdd(hn::Mul(y, s.complement), inner, s.value);
    store(hn::Mul(dy, slope), d_input + i, part);
    if (output != nullptr) store(y, output + i, part);
  });
}

template <class T>
void add_range(const AddArgs& args, std::int64_t begin, std::int64_t end) {
  const T* a = args.a.data.raw<T>() + begin;
  const T* b = args.b.data.raw<T>() + begin;
  T* output = args.output.data.raw<T>() + begin;
  each_vector(end - begin, [&](std::int64_t i, auto part) HWY_ATTR {
    store(hn::Add(load(a + i, part), load(b + i, part)), output + i, part);
  });
}

template <class To, class From>
void convert_range(To* target, const From* source, std::int64_t begin, std::int64_t end) {
  each_vector(end - begin, [&](std::int64_t i, auto part) HWY_ATTR {
    store(load(source + begin + i, part), target + begin + i, part);
  });
}

}  // namespace

void swiglu_forward_some(const SwigluArgs& args, std::int64_t begin, std::int64_t end) {
  with_type(args.output.dtype,
            [&](auto type) HWY_ATTR { swiglu_forward_rows<decltype(type)>(args, begin, end); });
}
void swiglu_backward_some(const SwigluBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  with_type(args.d_output.dtype,
            [&](auto type) HWY_ATTR { swiglu_backward_rows<decltype(type)>(args, begin, end); });
}
void gelu_forward_some(const GeluArgs& args, std::int64_t begin, std::int64_t end) {
  with_type(args.input.dtype,
            [&](auto type) HWY_ATTR { gelu_forward_range<decltype(type)>(args, begin, end); });
}
void gelu_backward_some(const GeluBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  with_type(args.input.dtype,
            [&](auto type) HWY_ATTR { gelu_backward_range<decltype(type)>(args, begin, end); });
}
void add_some(const AddArgs& args, std::int64_t begin, std::int64_t end) {
  with_type(args.a.dtype, [&](auto type) HWY_ATTR { add_range<decltype(type)>(args, begin, end); });
}
void convert_some(View target, View source, std::int64_t begin, std::int64_t end) {
  with_type(target.dtype, [&](auto to) HWY_ATTR {
    with_type(source.dtype, [&](auto from) HWY_ATTR {
      convert_range(target.data.raw<decltype(to)>(),
                    static_cast<const decltype(from)*>(source.data.raw<decltype(from)>()), begin,
                    end);
    });
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
namespace {
HWY_EXPORT(swiglu_forward_some);
HWY_EXPORT(swiglu_backward_some);
HWY_EXPORT(gelu_forward_some);
HWY_EXPORT(gelu_backward_some);
HWY_EXPORT(add_some);
HWY_EXPORT(convert_some);

/// Elements that one piece of work has at least: some ten microseconds' worth. A multiple of every
/// vector's lanes.
constexpr std::int64_t kPieceElements = 16384;

std::int64_t rows_of_a_piece(std::int64_t columns) {
  return std::max<std::int64_t>(1, kPieceElements / columns);
}

}  // namespace

void run(const Loops& loops, const SwigluArgs& args) {
  const auto kernel = HWY_DISPATCH_TABLE(swiglu_forward_some)[loops.target.table_index()];
  loops.workers.parallel_for(args.rows, rows_of_a_piece(args.columns),
                             [&](std::int64_t b, std::int64_t e) { kernel(args, b, e); });
}

void run(const Loops& loops, const SwigluBackwardArgs& args) {
  const auto kernel = HWY_DISPATCH_TABLE(swiglu_backward_some)[loops.target.table_index()];
  loops.workers.parallel_for(args.rows, rows_of_a_piece(args.columns),
                             [&](std::int64_t b, std::int64_t e) { kernel(args, b, e); });
}

void run(const Loops& loops, const GeluArgs& args) {
  const auto kernel = HWY_DISPATCH_TABLE(gelu_forward_some)[loops.target.table_index()];
  loops.workers.parallel_for(args.count, kPieceElements,
                             [&](std::int64_t b, std::int64_t e) { kernel(args, b, e); });
}

void run(const Loops& loops, const GeluBackwardArgs& args) {
  const auto kernel = HWY_DISPATCH_TABLE(gelu_backward_some)[loops.target.table_index()];
  loops.workers.parallel_for(args.count, kPieceElements,
                             [&](std::int64_t b, std::int64_t e) { kernel(args, b, e); });
}

void run(const Loops& loops, const AddArgs& args) {
  const auto kernel = HWY_DISPATCH_TABLE(add_some)[loops.target.table_index()];
  loops.workers.parallel_for(args.count, kPieceElements,
                             [&](std::int64_t b, std::int64_t e) { kernel(args, b, e); });
}

void run(const Loops& loops, const ConvertArgs& args) {
  const auto kernel = HWY_DISPATCH_TABLE(convert_some)[loops.target.table_index()];
  loops.workers.parallel_for(args.count, kPieceElements, [&](std::int64_t b, std::int64_t e) {
    kernel(args.output, args.source, b, e);
  });
}

void run(const Loops& loops, const ClearArgs& args) {
  loops.workers.parallel_for(static_cast<std::int64_t>(args.bytes), std::int64_t{1} << 20,
                             [&](std::int64_t b, std::int64_t e) {
                               std::fill(args.target.raw() + b, args.target.raw() + e,
                                         std::byte{0});
                             });
}

void convert_serially(CpuTarget cpu, View target, View source, std::int64_t count) {
  HWY_DISPATCH_TABLE(convert_some)[cpu.table_index()](target, source, 0, count);
}

}  // namespace terrace::kernels
#endif
