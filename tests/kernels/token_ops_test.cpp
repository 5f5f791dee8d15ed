#include <cmath>

#include "kernels/ops_conformance.h"
#include "terrace/core/error.h"

namespace terrace::kernels {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr DType kDtypes[] = {DType::f32, DType::bf16};

struct Embedding {
  std::int64_t rows = 3;
  std::int64_t sequence = 5;
  std::int64_t columns = 17;
  std::int64_t vocabulary = 6;
  std::int64_t position_rows = 8;
  std::vector<std::int32_t> tokens = {0, 5, 5, 2, 0, 1, 5, 2, 2, 2, 0, 0, 5, 1, 2};  // no 3, no 4

  [[nodiscard]] std::int64_t count() const { return rows * sequence; }
};

TEST_P(OpsConformance, embedding_forward_looks_tokens_up_and_adds_positions) {
  on_every_table([](const Machine& machine) {
    const Embedding e;
    for (const DType dtype : kDtypes) {
      const Values table = random_values(e.vocabulary * e.columns, 1, dtype);
      const Values positions = random_values(e.position_rows * e.columns, 2, dtype);
      const Tensor tokens = machine.integers(e.tokens);
      const Tensor table_tensor = machine.tensor(dtype, table);
      const Tensor position_tensor = machine.tensor(dtype, positions);
      const Tensor plain = machine.empty(dtype, e.count() * e.columns);
      const Tensor output = machine.empty(dtype, e.count() * e.columns);
      EmbeddingArgs args{e.rows,       e.sequence,       e.columns,
                         e.vocabulary, tokens.pointer(), table_tensor.view()};
      args.output = plain.view();
      machine.run(args);
      args.positions = position_tensor.view();
      args.output = output.view();
      machine.run(args);
      Values expected_plain;
      Values expected;
      for (std::int64_t i = 0; i < e.count() * e.columns; ++i) {
        const std::int64_t n = i / e.columns;
        const std::int64_t c = i % e.columns;
        const auto token = e.tokens[static_cast<std::size_t>(n)];
        expected_plain.push_back(table[static_cast<std::size_t>(token * e.columns + c)]);
        const double position = positions[static_cast<std::size_t>(n % e.sequence * e.columns + c)];
        expected.push_back(rounded(expected_plain.back() + position, dtype));
      }
      EXPECT_EQ(plain.read(), expected_plain);
      EXPECT_EQ(output.read(), expected);
    }
  });
}

TEST_P(OpsConformance, embedding_a_token_outside_the_vocabulary_fails_the_stream) {
  const Machine usual = machine();
  const Tensor tokens = usual.integers({1, 6});
  const Tensor table = usual.tensor(DType::f32, Values(12, 1));
  const Tensor output = usual.empty(DType::f32, 4);
  EmbeddingArgs args{1, 2, 2, 6, tokens.pointer(), table.view()};
  args.output = output.view();
  try {
    usual.run(args);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_NE(std::string(error.what()).find("Token 6 at position 1"), std::string::npos);
  }
}

void check_embedding_backward(const Machine& machine, DType dtype, bool accumulate) {
  const Embedding e;
  const Values d_output = random_values(e.count() * e.columns, 1, dtype);
  const Values table_before = random_values(e.vocabulary * e.columns, 2, DType::f32);
  const Values positions_before = random_values(e.position_rows * e.columns, 3, DType::f32);
  Values table = accumulate ? table_before : Values(table_before.size(), 0);
  Values positions = accumulate ? positions_before : Values(positions_before.size(), 0);
  for (std::int64_t i = 0; i < e.count() * e.columns; ++i) {
    const std::int64_t n = i / e.columns;
    const std::int64_t c = i % e.columns;
    const double value = d_output[static_cast<std::size_t>(i)];
    table[static_cast<std::size_t>(e.tokens[static_cast<std::size_t>(n)] * e.columns + c)] += value;
    positions[static_cast<std::size_t>(n % e.sequence * e.columns + c)] += value;
  }
  const Tensor tokens = machine.integers(e.tokens);
  const Tensor d_output_tensor = machine.tensor(dtype, d_output);
  const Tensor d_table = machine.tensor(DType::f32, table_before);
  const Tensor d_positions = machine.tensor(DType::f32, positions_before);
  EmbeddingBackwardArgs args{e.rows,
                             e.sequence,
                             e.columns,
                             e.vocabulary,
                             e.position_rows,
                             tokens.pointer(),
                             d_output_tensor.view(),
                             d_table.view(),
                             d_positions.view(),
                             accumulate,
                             accumulate};
  machine.run(args);
  // At most 6 values below 1 meet in an element: as many roundings of sums below 6.
  const Values size(table.size(), 6);
  expect_near(d_table.read(), table, size, 6 * kUnit, DType::f32);
  const Values position_size(positions.size(), 6);
  expect_near(d_positions.read(), positions, position_size, 6 * kUnit, DType::f32);
}

TEST_P(OpsConformance, embedding_backward_sums_over_each_token_and_position) {
  on_every_table([](const Machine& machine) {
    for (const DType dtype : kDtypes) {
      check_embedding_backward(machine, dtype, false);
      check_embedding_backward(machine, dtype, true);
    }
  });
}

void check_rotary(const Machine& machine, DType dtype, std::int64_t head_size) {
  const std::int64_t rows = 2;
  const std::int64_t sequence = 127;
  const std::int64_t heads = 3;
  const std::int64_t stride = heads * head_size + 5;
  const double theta = 10000;
  const Values before = random_values(rows * sequence * stride, 1, dtype);
  Values expected = before;
  Values error(before.size(), 0);
  for (std::int64_t n = 0; n < rows * sequence; ++n) {
    for (std::int64_t j = 0; j < heads * head_size / 2; ++j) {
      const std::int64_t i = j % (head_size / 2);
      const auto at = static_cast<std::size_t>(n * stride + j / (head_size / 2) * head_size + i);
      const std::size_t other = at + static_cast<std::size_t>(head_size / 2);
      const double frequency =
          rounded(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_size)),
                  DType::f32);
      const double angle = rounded(static_cast<double>(n % sequence) * frequency, DType::f32);
      expected[at] = before[at] * std::cos(angle) - before[other] * std::sin(angle);
      expected[other] = before[other] * std::cos(angle) + before[at] * std::sin(angle);
      // A frequency may be rounded the other way (2^-23), which the position multiplies; cosine and
      // sine to a rounding, and three more for the products.
      error[at] = error[other] =
          (std::abs(before[at]) + std::abs(before[other])) * (2 * angle + 4) * kUnit;
    }
  }
  const Tensor values = machine.tensor(dtype, before);
  RotaryArgs args{rows, sequence, heads, head_size, static_cast<float>(theta)};
  args.values = values.view();
  args.stride = stride;
  machine.run(args);
  expect_near(values.read(), expected, error, dtype);
  args.inverse = true;
  machine.run(args);
  // There and back: the rounding of the turned values (below 2) to the dtype, twice over.
  expect_near(values.read(), before, Values(before.size(), 8 * unit_roundoff(dtype)), dtype);
}

TEST_P(OpsConformance, rotary_turns_as_the_reference_and_back) {
  on_every_table([](const Machine& machine) {
    for (const DType dtype : kDtypes) {
      for (const std::int64_t head_size : {2, 6, 34, 80, 128}) {
        check_rotary(machine, dtype, head_size);
      }
    }
  });
}

struct Losses {
  std::int64_t rows = 6;
  std::int64_t vocabulary = 0;
  std::int64_t stride = 0;
  DType dtype = DType::f32;
  double scale = 0.25;
  std::vector<std::int32_t> targets;
  Values logits;
  Values loss;
  Values gradient;       ///< dense
  Values gradient_size;  ///< p * scale, and one for the target

  Losses(std::int64_t vocabulary_in, DType dtype_in)
      : vocabulary(vocabulary_in), stride(vocabulary_in + 3), dtype(dtype_in) {
    logits = random_values(rows * stride, 1, dtype, 8);
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto target = static_cast<std::int32_t>(row == 2 ? -1 : row * 11 % vocabulary);
      targets.push_back(target);
      add_row(logits.data() + row * stride, target);
    }
  }

 private:
  void add_row(const double* row, std::int64_t target) {
    double sum = 0;
    for (std::int64_t i = 0; i < vocabulary; ++i) sum += std::exp(row[i]);
    loss.push_back(target < 0 ? 0 : std::log(sum) - row[target]);
    for (std::int64_t i = 0; i < vocabulary; ++i) {
      const double p = std::exp(row[i]) / sum;
      gradient.push_back(target < 0 ? 0 : (p - (i == target ? 1 : 0)) * scale);
      gradient_size.push_back(target < 0 ? 0 : std::abs(gradient.back()));
    }
  }
};

void check_cross_entropy(const Machine& machine, std::int64_t vocabulary, DType dtype,
                         DType gradient_dtype) {
  const Losses expected(vocabulary, dtype);
  const std::int64_t rows = expected.rows;
  const Tensor logits = machine.tensor(dtype, expected.logits);
  const Tensor targets = machine.integers(expected.targets);
  const Tensor losses = machine.empty(DType::f32, rows);
  CrossEntropyArgs args{rows,
                        vocabulary,
                        logits.view(),
                        expected.stride,
                        targets.pointer(),
                        static_cast<float>(expected.scale),
                        losses.pointer()};
  machine.run(args);
  EXPECT_EQ(logits.read(), expected.logits);
  // Logits up to 8: the difference to the greatest is rounded (16 units), the exponential to 2, the
  // sum to one for each of a lane's terms (at most V) and a few.
  const double relative = static_cast<double>(40 + vocabulary) * kUnit;
  expect_near(losses.read(), expected.loss, Values(expected.loss.size(), relative), DType::f32);

  args.gradient = {logits.pointer(), gradient_dtype};
  args.gradient_stride =
      expected.stride * static_cast<std::int64_t>(size_of(dtype) / size_of(gradient_dtype));
  machine.run(args);
  const Values all = values_of(logits.bits(), gradient_dtype);
  Values got;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < vocabulary; ++i) {
      got.push_back(all[static_cast<std::size_t>(row * args.gradient_stride + i)]);
    }
  }
  expect_near(got, expected.gradient, expected.gradient_size, relative + 16 * kUnit,
              gradient_dtype);
}

TEST_P(OpsConformance, cross_entropy_losses_and_gradients_in_place_match_the_reference) {
  on_every_table([](const Machine& machine) {
    for (const std::int64_t vocabulary : {3, 17, 65, 127, 5000}) {
      check_cross_entropy(machine, vocabulary, DType::f32, DType::f32);
      check_cross_entropy(machine, vocabulary, DType::f32, DType::bf16);
      check_cross_entropy(machine, vocabulary, DType::bf16, DType::bf16);
    }
  });
}

TEST_P(OpsConformance, cross_entropy_a_nan_in_the_logits_reaches_the_loss) {
  on_every_table([](const Machine& machine) {
    Values logits(40, 0.5);
    logits[33] = std::nan("");
    const Tensor tensor = machine.tensor(DType::f32, logits);
    const Tensor targets = machine.integers({0});
    const Tensor losses = machine.empty(DType::f32, 1);
    losses.write({0});
    machine.run(
        CrossEntropyArgs{1, 40, tensor.view(), 40, targets.pointer(), 1.0F, losses.pointer()});
    EXPECT_TRUE(std::isnan(losses.read()[0]));
  });
}

TEST_P(OpsConformance, cross_entropy_a_target_outside_the_vocabulary_fails_the_stream) {
  const Machine usual = machine();
  const Tensor logits = usual.tensor(DType::f32, Values(8, 0));
  const Tensor targets = usual.integers({1, 4});
  const Tensor losses = usual.empty(DType::f32, 2);
  EXPECT_THROW(usual.run(CrossEntropyArgs{2, 4, logits.view(), 4, targets.pointer(), 1.0F,
                                          losses.pointer()}),
               Error);
}

TEST_P(OpsConformance, sum_adds_in_double) {
  const Machine usual = machine();
  const Values values = random_values(100001, 1, DType::f32);
  double expected = 0;
  for (const double value : values) expected += value;
  const Tensor tensor = usual.tensor(DType::f32, values);
  const Tensor sum = usual.scratch(sizeof(double));
  usual.run(SumArgs{100001, tensor.pointer(), sum.pointer()});
  // 1e5 roundings of sums below 1e5 at most, on either side.
  double got = 0;
  std::memcpy(&got, sum.bits().data(), sizeof got);
  EXPECT_NEAR(got, expected, 2e5 * 0x1p-53 * 1e5);
}

TEST_P(OpsConformance, gather_rows_copies_the_rows_named) {
  const Machine usual = machine();
  const Values source = random_values(5 * 3, 1, DType::bf16);
  const Tensor tensor = usual.tensor(DType::bf16, source);
  const Tensor indices = usual.integers({4, 0, 4});
  const Tensor output = usual.empty(DType::bf16, 9);
  usual.run(GatherRowsArgs{3, 3, 5, indices.pointer(), tensor.view(), output.view()});
  EXPECT_EQ(output.read(), (Values{source[12], source[13], source[14], source[0], source[1],
                                   source[2], source[12], source[13], source[14]}));
}

}  // namespace
}  // namespace terrace::kernels
