#include "kernels/ops_conformance.h"

namespace terrace::kernels {
namespace {

/// One product with its operands and a reference in double.
struct Case {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType dtype = DType::f32;
  DType target_dtype = DType::f32;
  bool a_transposed = false;
  bool b_transposed = false;
  bool bias = false;
  bool residual = false;
  bool in_place = false;  ///< the residual is the target
  bool accumulate = false;
  std::int64_t pad = 0;  ///< elements between rows
  std::size_t shift = 0;

  [[nodiscard]] std::int64_t a_rows() const { return a_transposed ? k : m; }
  [[nodiscard]] std::int64_t a_stride() const { return (a_transposed ? m : k) + pad; }
  [[nodiscard]] std::int64_t b_rows() const { return b_transposed ? n : k; }
  [[nodiscard]] std::int64_t b_stride() const { return (b_transposed ? k : n) + pad; }
  [[nodiscard]] std::int64_t target_stride() const { return n + pad; }
};

struct Operands {
  explicit Operands(const Case& c)
      : a(random_values(c.a_rows() * c.a_stride(), 1, c.dtype)),
        b(random_values(c.b_rows() * c.b_stride(), 2, c.dtype)),
        bias(random_values(c.n, 3, c.dtype)),
        before(random_values(c.m * c.target_stride(), 4, c.target_dtype)) {}
  Values a;
  Values b;
  Values bias;
  Values before;  ///< the residual, or what the target held
};

struct Expected {
  Values value;
  Values magnitude;
};

Expected reference(const Case& c, const Operands& x) {
  Expected result{x.before, Values(x.before.size(), 0)};
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t j = 0; j < c.n; ++j) {
      const auto at = static_cast<std::size_t>(i * c.target_stride() + j);
      double sum = c.residual || c.accumulate ? x.before[at] : 0;
      double magnitude = std::abs(sum);
      if (c.bias) sum += x.bias[static_cast<std::size_t>(j)];
      if (c.bias) magnitude += std::abs(x.bias[static_cast<std::size_t>(j)]);
      for (std::int64_t l = 0; l < c.k; ++l) {
        const double product = x.a[static_cast<std::size_t>(
                                   c.a_transposed ? l * c.a_stride() + i : i * c.a_stride() + l)] *
                               x.b[static_cast<std::size_t>(c.b_transposed ? j * c.b_stride() + l
                                                                           : l * c.b_stride() + j)];
        sum += product;
        magnitude += std::abs(product);
      }
      result.value[at] = sum;
      result.magnitude[at] = magnitude;
    }
  }
  return result;
}

Tensor run(const Machine& machine, const Case& c, const Operands& x) {
  const Tensor a = machine.tensor(c.dtype, x.a, c.shift);
  const Tensor b = machine.tensor(c.dtype, x.b, c.shift);
  const Tensor bias = machine.tensor(c.dtype, x.bias, c.shift);
  const Tensor residual = machine.tensor(c.target_dtype, x.before, c.shift);
  Tensor target = machine.tensor(c.target_dtype, x.before, c.shift);
  MatmulArgs args;
  args.m = c.m;
  args.n = c.n;
  args.k = c.k;
  args.a = a.view();
  args.a_stride = c.a_stride();
  args.b = b.view();
  args.b_stride = c.b_stride();
  args.target = target.view();
  args.target_stride = c.target_stride();
  if (c.bias) args.bias = bias.view();
  if (c.residual) args.residual = c.in_place ? target.view() : residual.view();
  args.a_transposed = c.a_transposed;
  args.b_transposed = c.b_transposed;
  args.accumulate = c.accumulate;
  machine.run(args);
  return target;
}

void check(const Machine& machine, const Case& c) {
  SCOPED_TRACE(::testing::Message()
               << c.m << " x " << c.n << " x " << c.k << " " << name_of(c.dtype) << " to "
               << name_of(c.target_dtype) << (c.a_transposed ? " aT" : "")
               << (c.b_transposed ? " bT" : "") << " bias " << c.bias << " residual " << c.residual
               << c.in_place << " accumulate " << c.accumulate << " pad " << c.pad);
  const Operands operands(c);
  const Expected expected = reference(c, operands);
  // k products and sums in FP32, each to 2^-24 of a partial sum that the magnitude bounds: k + 3
  // roundings with bias and residual. What lies between the rows must keep its value (magnitude 0).
  const double relative = static_cast<double>(c.k + 3) * 0x1p-24;
  expect_near(run(machine, c, operands).read(), expected.value, expected.magnitude, relative,
              c.target_dtype);
}

constexpr std::int64_t kSizes[][3] = {{1, 1, 1},     {1, 17, 3},    {3, 1, 65},    {17, 3, 1},
                                      {65, 127, 17}, {127, 65, 3},  {1, 127, 127}, {64, 64, 64},
                                      {127, 1, 17},  {33, 130, 300}};

struct Types {
  DType dtype;
  DType target;
};
constexpr Types kTypes[] = {
    {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};

void check_all_layouts(const Machine& machine) {
  for (const auto& size : kSizes) {
    for (const Types types : kTypes) {
      for (const int layout : {0, 1, 2, 3}) {
        Case c{size[0], size[1], size[2], types.dtype, types.target};
        c.a_transposed = (layout & 1) != 0;
        c.b_transposed = (layout & 2) != 0;
        c.pad = layout;
        check(machine, c);
      }
    }
  }
}

void check_all_summands(const Machine& machine) {
  for (const Types types : kTypes) {
    for (const bool bias : {false, true}) {
      Case c{33, 65, 17, types.dtype, types.target};
      c.bias = bias;
      c.pad = 3;
      check(machine, c);
      c.residual = true;
      check(machine, c);
      c.in_place = true;
      check(machine, c);
      c.residual = c.in_place = false;
      c.accumulate = true;
      if (types.target == DType::f32) check(machine, c);
    }
  }
}

TEST_P(OpsConformance, matmul_every_layout_and_dtype_matches_the_reference) {
  on_every_product(check_all_layouts);
}

/// Sizes at which operands are copied first (note "Repacking"): transposed left sides, and FP32
/// rows that are whole pages apart.
TEST_P(OpsConformance, matmul_repacked_operands_match_the_reference) {
  on_every_table([](const Machine& machine) {
    for (const Types types : kTypes) {
      Case c{67, 1024, 70, types.dtype, types.target};
      check(machine, c);
      c = {1024, 67, 70, types.dtype, types.target};
      c.a_transposed = true;
      check(machine, c);
      c = {65, 127, 130, types.dtype, types.target};
      c.a_transposed = true;
      c.pad = 1;
      c.bias = true;
      check(machine, c);
    }
  });
}

TEST_P(OpsConformance, matmul_bias_residual_and_accumulation_are_added_before_the_one_rounding) {
  on_every_product(check_all_summands);
}

constexpr std::int64_t kThreadSizes[][3] = {{127, 65, 300}, {64, 768, 256}, {300, 1024, 64}};

TEST_P(OpsConformance, matmul_alignment_and_number_of_threads_do_not_change_a_bit) {
  on_twins([](const Machine& one, const Machine& two) {
    for (const Types types : kTypes) {
      for (const int layout : {0, 1, 2}) {
        for (const auto& [m, n, k] : kThreadSizes) {
          Case c{m, n, k, types.dtype, types.target};
          c.a_transposed = (layout & 1) != 0;
          c.b_transposed = (layout & 2) != 0;
          const Operands operands(c);
          const std::string bits = run(one, c, operands).bits();
          EXPECT_EQ(bits, run(two, c, operands).bits()) << m << " " << layout;
          c.shift = 4;
          EXPECT_EQ(bits, run(two, c, operands).bits()) << m << " " << layout << " shifted";
        }
      }
    }
  });
}

}  // namespace
}  // namespace terrace::kernels
