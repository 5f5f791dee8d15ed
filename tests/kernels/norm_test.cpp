#include <cmath>

#include "kernels/ops_conformance.h"

namespace terrace::kernels {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr double kUnit = 0x1p-24;

struct Case {
  NormKind kind = NormKind::rms;
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  DType dtype = DType::f32;
  DType d_output_dtype = DType::f32;

  [[nodiscard]] bool layer() const { return kind == NormKind::layer; }
};

struct Inputs {
  explicit Inputs(const Case& c)
      : x(random_values(c.rows * c.columns, 1, c.dtype, 2)),
        residual(random_values(c.rows * c.columns, 2, c.dtype)),
        weight(random_values(c.columns, 3, c.dtype)),
        bias(random_values(c.columns, 4, c.dtype)),
        d_output(random_values(c.rows * c.columns, 5, c.d_output_dtype)),
        d_residual(random_values(c.rows * c.columns, 6, c.dtype)),
        gradient(random_values(c.columns, 7, DType::f32)) {
    // A mean that is not near zero, so that layer norm has something to take away.
    for (double& value : x) value = rounded(value + 1.5, c.dtype);
  }
  Values x, residual, weight, bias, d_output, d_residual;
  Values gradient;  ///< what d_weight and d_bias hold before
};

/// Results, each with the sum of the absolute values of its terms.
struct Expected {
  explicit Expected(const Case& c)
      : sum(static_cast<std::size_t>(c.rows * c.columns)),
        y(sum),
        y_size(sum),
        d_x(sum),
        d_x_size(sum),
        d_weight(static_cast<std::size_t>(c.columns)),
        d_weight_size(d_weight),
        d_bias(d_weight),
        d_bias_size(d_weight) {}
  Values sum, y, y_size, d_x, d_x_size;
  Values d_weight, d_weight_size, d_bias, d_bias_size;
};

void reference_row(const Case& c, const Inputs& in, std::int64_t row, Expected& r) {
  const auto n = static_cast<std::size_t>(c.columns);
  const std::size_t first = static_cast<std::size_t>(row) * n;
  const double* x = r.sum.data() + first;
  double mean = 0;
  double mean_size = 0;
  for (std::size_t i = 0; i < n; ++i) {
    mean += c.layer() ? x[i] / static_cast<double>(n) : 0;
    mean_size += c.layer() ? std::abs(x[i]) / static_cast<double>(n) : 0;
  }
  double square = 0;
  for (std::size_t i = 0; i < n; ++i)
    square += (x[i] - mean) * (x[i] - mean) / static_cast<double>(n);
  const double inverse = 1 / std::sqrt(square + kEpsilon);
  Values g(n), xhat(n), xhat_size(n);
  double mean_g = 0, mean_gx = 0, mean_g_size = 0, mean_gx_size = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double dy = in.d_output[first + i];
    xhat[i] = (x[i] - mean) * inverse;
    xhat_size[i] = (std::abs(x[i]) + mean_size) * inverse;
    r.y[first + i] = xhat[i] * in.weight[i] + (c.layer() ? in.bias[i] : 0);
    r.y_size[first + i] =
        xhat_size[i] * std::abs(in.weight[i]) + (c.layer() ? std::abs(in.bias[i]) : 0);
    g[i] = dy * in.weight[i];
    mean_g += c.layer() ? g[i] / static_cast<double>(n) : 0;
    mean_g_size += c.layer() ? std::abs(g[i]) / static_cast<double>(n) : 0;
    mean_gx += g[i] * xhat[i] / static_cast<double>(n);
    mean_gx_size += std::abs(g[i]) * xhat_size[i] / static_cast<double>(n);
    r.d_weight[i] += dy * xhat[i];
    r.d_weight_size[i] += std::abs(dy) * xhat_size[i];
    r.d_bias[i] += dy;
    r.d_bias_size[i] += std::abs(dy);
  }
  for (std::size_t i = 0; i < n; ++i) {
    r.d_x[first + i] = in.d_residual[first + i] + inverse * (g[i] - mean_g - xhat[i] * mean_gx);
    r.d_x_size[first + i] = std::abs(in.d_residual[first + i]) +
                            inverse * (std::abs(g[i]) + mean_g_size + xhat_size[i] * mean_gx_size);
  }
}

Expected reference(const Case& c, const Inputs& in) {
  Expected r(c);
  for (std::size_t i = 0; i < in.x.size(); ++i)
    r.sum[i] = rounded(in.x[i] + in.residual[i], c.dtype);
  for (std::int64_t row = 0; row < c.rows; ++row) reference_row(c, in, row, r);
  return r;
}

struct Results {
  Tensor sum, output, statistics, d_input, d_weight, d_bias;
};

/// Forward with a residual, backward with one, both in place; gradients added to what was there.
Results run(const Machine& machine, const Case& c, const Inputs& in, bool accumulate,
            std::size_t shift = 0) {
  Results r{machine.tensor(c.dtype, in.x, shift),
            machine.empty(c.dtype, c.rows * c.columns, shift),
            machine.empty(DType::f32, c.rows * norm_statistics(c.kind), shift),
            machine.tensor(c.dtype, in.d_residual, shift),
            machine.tensor(DType::f32, in.gradient, shift),
            machine.tensor(DType::f32, in.gradient, shift)};
  const Tensor residual = machine.tensor(c.dtype, in.residual, shift);
  const Tensor weight = machine.tensor(c.dtype, in.weight, shift);
  const Tensor bias = machine.tensor(c.dtype, in.bias, shift);
  const Tensor d_output = machine.tensor(c.d_output_dtype, in.d_output, shift);
  NormArgs forward;
  forward.kind = c.kind;
  forward.epsilon = static_cast<float>(kEpsilon);
  forward.rows = c.rows;
  forward.columns = c.columns;
  forward.input = forward.sum = r.sum.view();
  forward.residual = residual.view();
  forward.weight = weight.view();
  if (c.layer()) forward.bias = bias.view();
  forward.output = r.output.view();
  forward.statistics = r.statistics.pointer();
  machine.run(forward);
  NormBackwardArgs backward;
  backward.kind = c.kind;
  backward.rows = c.rows;
  backward.columns = c.columns;
  backward.input = r.sum.view();
  backward.weight = weight.view();
  backward.statistics = r.statistics.pointer();
  backward.d_output = d_output.view();
  backward.d_residual = backward.d_input = r.d_input.view();
  backward.d_weight = r.d_weight.view();
  if (c.layer()) backward.d_bias = r.d_bias.view();
  backward.accumulate_weight = backward.accumulate_bias = accumulate;
  machine.run(backward);
  return r;
}

Values plus(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

Values absolute(Values a) {
  for (double& value : a) value = std::abs(value);
  return a;
}

void check(const Machine& machine, const Case& c, bool accumulate) {
  SCOPED_TRACE(::testing::Message() << (c.layer() ? "layer " : "rms ") << c.rows << " x "
                                    << c.columns << " " << name_of(c.dtype));
  const Inputs in(c);
  const Expected expected = reference(c, in);
  const Results got = run(machine, c, in, accumulate);
  EXPECT_EQ(got.sum.read(), expected.sum);
  // Sums over C in FP32 (C roundings and a few for mean, root and products), once for the
  // statistics and once for the means of the gradient; d_weight and d_bias sum over the rows too.
  const double forward = static_cast<double>(c.columns + 12) * kUnit;
  expect_near(got.output.read(), expected.y, expected.y_size, forward, c.dtype);
  expect_near(got.d_input.read(), expected.d_x, expected.d_x_size, 3 * forward, c.dtype);
  const double weights = forward + static_cast<double>(c.rows + 2) * kUnit;
  const Values before = accumulate ? in.gradient : Values(in.gradient.size(), 0);
  expect_near(got.d_weight.read(), plus(expected.d_weight, before),
              plus(expected.d_weight_size, absolute(before)), weights, DType::f32);
  if (!c.layer()) return;
  expect_near(got.d_bias.read(), plus(expected.d_bias, before),
              plus(expected.d_bias_size, absolute(before)), weights, DType::f32);
}

TEST_P(OpsConformance, norm_forward_and_backward_match_the_reference) {
  on_every_table([](const Machine& machine) {
    for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
      for (const std::int64_t columns : {1, 3, 17, 65, 127}) {
        check(machine, {kind, 9, columns, DType::f32, DType::f32}, false);
        check(machine, {kind, 9, columns, DType::bf16, DType::bf16}, true);
        check(machine, {kind, 9, columns, DType::bf16, DType::f32}, true);
      }
    }
  });
}

TEST_P(OpsConformance, norm_many_rows_match_the_reference) {
  const Machine usual = machine();
  for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
    for (const std::int64_t rows : {1, 65, 1500}) {
      check(usual, {kind, rows, 33, DType::f32, DType::f32}, true);
      check(usual, {kind, rows, 33, DType::bf16, DType::bf16}, false);
    }
  }
}

TEST_P(OpsConformance, norm_alignment_and_number_of_threads_do_not_change_a_bit) {
  on_twins([](const Machine& one, const Machine& two) {
    for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
      const Case c{kind, 1000, 65, DType::bf16, DType::bf16};
      const Inputs in(c);
      const Results first = run(one, c, in, true);
      const Results second = run(two, c, in, true, /*shift=*/4);
      EXPECT_EQ(first.output.bits(), second.output.bits());
      EXPECT_EQ(first.statistics.bits(), second.statistics.bits());
      EXPECT_EQ(first.d_input.bits(), second.d_input.bits());
      EXPECT_EQ(first.d_weight.bits(), second.d_weight.bits());
      EXPECT_EQ(first.d_bias.bits(), second.d_bias.bits());
    }
  });
}

TEST_P(OpsConformance, bias_gradient_sums_the_rows) {
  on_every_table([](const Machine& machine) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::int64_t rows : {1, 17, 700}) {
        const std::int64_t columns = 65;
        const std::int64_t stride = 70;
        const Values d_y = random_values(rows * stride, 1, dtype);
        const Values before = random_values(columns, 2, DType::f32);
        Values expected = before;
        Values size = absolute(before);
        for (std::int64_t i = 0; i < rows * stride; ++i) {
          if (i % stride >= columns) continue;
          expected[static_cast<std::size_t>(i % stride)] += d_y[static_cast<std::size_t>(i)];
          size[static_cast<std::size_t>(i % stride)] += std::abs(d_y[static_cast<std::size_t>(i)]);
        }
        const Tensor input = machine.tensor(dtype, d_y);
        const Tensor d_bias = machine.tensor(DType::f32, before);
        BiasGradientArgs args{rows, columns, input.view(), stride, d_bias.view(), true};
        machine.run(args);
        // One rounding a row.
        expect_near(d_bias.read(), expected, size, static_cast<double>(rows + 1) * kUnit,
                    DType::f32);
      }
    }
  });
}

}  // namespace
}  // namespace terrace::kernels
