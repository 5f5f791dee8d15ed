#include <bit>

#include "kernels/ops_conformance.h"

namespace terrace::kernels {
namespace {

constexpr std::int64_t kColumns[] = {1, 3, 17, 65, 127, 256};
constexpr DType kDtypes[] = {DType::f32, DType::bf16};
constexpr double kUnit = 0x1p-24;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// Random values of which some are large, as trained models have them.
Values wide_values(std::int64_t count, unsigned seed, DType dtype) {
  Values values = random_values(count, seed, dtype, 4);
  for (std::size_t i = 0; i < values.size(); i += 7) values[i] = rounded(values[i] * 7, dtype);
  return values;
}

/// Each result with the error that FP32 arithmetic may have left in it.
struct Expected {
  void add(double value, double error) {
    values.push_back(value);
    errors.push_back(error);
  }
  Values values;
  Values errors;
};

/// The exponential is good to 2 units; its argument's own rounding counts |argument| times.
double relative(double argument) { return (12 + 4 * std::abs(argument)) * kUnit; }

struct Swiglu {
  Swiglu(std::int64_t rows, std::int64_t columns, DType dtype)
      : packed(wide_values(rows * 2 * columns, 1, dtype)),
        d_output(random_values(rows * columns, 2, dtype)) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < 2 * columns; ++i) {
        const std::int64_t column = i % columns;
        const double g = packed[static_cast<std::size_t>(row * 2 * columns + column)];
        const double u = packed[static_cast<std::size_t>((row * 2 + 1) * columns + column)];
        const double dy = d_output[static_cast<std::size_t>(row * columns + column)];
        const double s = sigmoid(g);
        if (i < columns) {
          const double slope = s + g * s * (1 - s);
          const double size = s + std::abs(g) * s * (1 - s);
          output.add(g * s * u, std::abs(g * s * u) * relative(g));
          d_packed.add(dy * u * slope, std::abs(dy * u) * size * relative(g));
        } else {
          d_packed.add(dy * g * s, std::abs(dy * g * s) * relative(g));
        }
      }
    }
  }
  Values packed;  ///< [rows, gate | up]
  Values d_output;
  Expected output;
  Expected d_packed;
};

void check_swiglu(const Machine& machine, std::int64_t columns, DType dtype) {
  const std::int64_t rows = 5;
  const Swiglu expected(rows, columns, dtype);
  const Tensor packed = machine.tensor(dtype, expected.packed);
  const Tensor output = machine.empty(dtype, rows * columns);
  const View up = packed.view().offset(columns);
  machine.run(SwigluArgs{rows, columns, packed.view(), up, 2 * columns, output.view()});
  expect_near(output.read(), expected.output.values, expected.output.errors, dtype);

  // In place: the gradients where gate and up were, the output again where its gradient was.
  const Tensor d_output = machine.tensor(dtype, expected.d_output);
  SwigluBackwardArgs args{rows, columns, packed.view(), up, d_output.view(), packed.view(), up};
  args.stride = 2 * columns;
  args.output = d_output.view();
  machine.run(args);
  expect_near(packed.read(), expected.d_packed.values, expected.d_packed.errors, dtype);
  EXPECT_EQ(d_output.bits(), output.bits());
}

TEST_P(OpsConformance, swiglu_forward_and_backward_match_the_reference) {
  on_every_table([](const Machine& machine) {
    for (const std::int64_t columns : kColumns) {
      for (const DType dtype : kDtypes) check_swiglu(machine, columns, dtype);
    }
  });
}

void check_gelu(const Machine& machine, std::int64_t count, DType dtype) {
  const Values x = wide_values(count, 1, dtype);
  const Values dy = random_values(count, 2, dtype);
  Expected y;
  Expected dx;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double root = std::sqrt(2 / std::acos(-1.0));
    const double z = root * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
    const double slope = root * (1 + 3 * 0.044715 * x[i] * x[i]);
    const double half = 0.5 * (1 + std::tanh(z));
    // 0.5 x (1 - tanh^2) slope, without the cancellation of 1 - tanh.
    const double rest = 0.5 * x[i] * slope / (std::cosh(z) * std::cosh(z));
    // tanh of the reference loses 2^-53 next to 1; below exp(-80) the operation stops shrinking.
    const double floor = std::abs(x[i]) * 1e-15;
    y.add(x[i] * half, std::abs(x[i] * half) * relative(2 * z) + floor);
    dx.add(dy[i] * (half + rest),
           std::abs(dy[i]) * (half + std::abs(rest)) * relative(2 * z) + floor * (1 + slope));
  }
  const Tensor input = machine.tensor(dtype, x);
  const Tensor output = machine.empty(dtype, count);
  machine.run(GeluArgs{count, input.view(), output.view()});
  const Tensor d_output = machine.tensor(dtype, dy);
  const Tensor again = machine.empty(dtype, count);
  machine.run(
      GeluBackwardArgs{count, input.view(), d_output.view(), d_output.view(), again.view()});
  expect_near(output.read(), y.values, y.errors, dtype);
  expect_near(d_output.read(), dx.values, dx.errors, dtype);
  EXPECT_EQ(again.bits(), output.bits());
}

TEST_P(OpsConformance, gelu_forward_and_backward_match_the_reference) {
  on_every_table([](const Machine& machine) {
    for (const std::int64_t count : {1, 3, 17, 65, 127, 40000}) {
      for (const DType dtype : kDtypes) check_gelu(machine, count, dtype);
    }
  });
}

TEST_P(OpsConformance, add_rounds_the_exact_sum_once) {
  on_every_table([](const Machine& machine) {
    for (const DType dtype : kDtypes) {
      for (const std::int64_t count : kColumns) {
        const Values a = random_values(count, 1, dtype);
        const Values b = random_values(count, 2, dtype);
        const Tensor left = machine.tensor(dtype, a);
        const Tensor right = machine.tensor(dtype, b);
        machine.run(AddArgs{count, left.view(), right.view(), left.view()});
        Values expected;
        for (std::size_t i = 0; i < a.size(); ++i) expected.push_back(rounded(a[i] + b[i], dtype));
        EXPECT_EQ(left.read(), expected);
      }
    }
  });
}

/// Every pattern of the upper half with a few lower halves around the ties.
TEST_P(OpsConformance, convert_rounds_as_the_core_does_for_every_upper_half) {
  std::vector<float> patterns;
  for (std::uint32_t upper = 0; upper < 0x10000U; ++upper) {
    for (const std::uint32_t lower : {0x0U, 0x1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      patterns.push_back(std::bit_cast<float>((upper << 16) | lower));
    }
  }
  const auto count = static_cast<std::int64_t>(patterns.size());
  on_every_table([&](const Machine& machine) {
    const Tensor source = machine.empty(DType::f32, count);
    source.write_bits({reinterpret_cast<const char*>(patterns.data()), source.bytes()});
    const Tensor narrow = machine.empty(DType::bf16, count);
    const Tensor wide = machine.empty(DType::f32, count);
    machine.run(ConvertArgs{count, source.view(), narrow.view()});
    machine.run(ConvertArgs{count, narrow.view(), wide.view()});
    const std::string narrow_bits = narrow.bits();
    const std::string wide_bits = wide.bits();
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      Bf16 got;
      std::memcpy(&got, narrow_bits.data() + i * sizeof got, sizeof got);
      ASSERT_EQ(got.bits, to_bf16(patterns[i]).bits) << std::bit_cast<std::uint32_t>(patterns[i]);
      std::uint32_t back = 0;
      std::memcpy(&back, wide_bits.data() + i * sizeof back, sizeof back);
      ASSERT_EQ(back, std::uint32_t{got.bits} << 16);
    }
  });
}

TEST_P(OpsConformance, clear_clears_exactly_what_it_is_given) {
  const Machine usual = machine();
  const Tensor tensor = usual.empty(DType::i32, 1000000);
  usual.run(ClearArgs{tensor.pointer() + 4, tensor.bytes() - 8});
  const std::string bits = tensor.bits();
  EXPECT_EQ(bits.substr(0, 4), std::string(4, '\xff'));
  EXPECT_EQ(bits.substr(4, bits.size() - 8), std::string(bits.size() - 8, '\0'));
  EXPECT_EQ(bits.substr(bits.size() - 4), std::string(4, '\xff'));
}

}  // namespace
}  // namespace terrace::kernels
