#include <algorithm>

#include "kernels/ops_conformance.h"

namespace terrace::kernels {
namespace {

struct Case {
  std::int64_t rows = 1;
  std::int64_t sequence = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_size = 1;
  std::int64_t window = 0;

  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(head_size)); }
  /// q, k and v of a token side by side.
  [[nodiscard]] std::int64_t packed() const { return (heads + 2 * kv_heads) * head_size; }
  [[nodiscard]] std::int64_t tokens() const { return rows * sequence; }
  [[nodiscard]] std::size_t q_at(std::int64_t token, std::int64_t head) const {
    return static_cast<std::size_t>(token * packed() + head * head_size);
  }
  [[nodiscard]] std::size_t k_at(std::int64_t token, std::int64_t head) const {
    return q_at(token, heads + head / (heads / kv_heads));
  }
  [[nodiscard]] std::size_t v_at(std::int64_t token, std::int64_t head) const {
    return q_at(token, heads + kv_heads + head / (heads / kv_heads));
  }
  [[nodiscard]] std::size_t o_at(std::int64_t token, std::int64_t head) const {
    return static_cast<std::size_t>((token * heads + head) * head_size);
  }
};

/// Results, and for each the sum of the absolute values of its terms.
struct Reference {
  Values output, output_size;
  Values log_sum_exp;
  Values d_packed, d_packed_size;
};

double product(const Values& a, std::size_t i, const Values& b, std::size_t j, std::int64_t count) {
  double sum = 0;
  for (std::size_t l = 0; l < static_cast<std::size_t>(count); ++l) sum += a[i + l] * b[j + l];
  return sum;
}

double magnitude(const Values& a, std::size_t i, const Values& b, std::size_t j,
                 std::int64_t count) {
  double sum = 0;
  for (std::size_t l = 0; l < static_cast<std::size_t>(count); ++l) {
    sum += std::abs(a[i + l] * b[j + l]);
  }
  return sum;
}

/// The probabilities of one query over the keys (first, query], from the definition.
struct Query {
  Query(const Case& c, const Values& packed, std::int64_t row, std::int64_t head, std::int64_t at)
      : first(c.window > 0 ? std::max<std::int64_t>(0, at - c.window + 1) : 0) {
    double sum = 0;
    for (std::int64_t key = first; key <= at; ++key) {
      const double score = c.scale() * product(packed, c.q_at(row * c.sequence + at, head), packed,
                                               c.k_at(row * c.sequence + key, head), c.head_size);
      probabilities.push_back(std::exp(score));
      sum += probabilities.back();
    }
    for (double& p : probabilities) p /= sum;
    log_sum_exp = std::log(sum);
  }
  std::int64_t first;
  Values probabilities;
  double log_sum_exp = 0;
};

void add_row(Values& to, Values& size, std::size_t at, double factor, double factor_size,
             const Values& from, std::size_t from_at, std::int64_t count) {
  for (std::size_t l = 0; l < static_cast<std::size_t>(count); ++l) {
    to[at + l] += factor * from[from_at + l];
    size[at + l] += factor_size * std::abs(from[from_at + l]);
  }
}

void reference_query(const Case& c, const Values& packed, const Values& d_output, std::int64_t row,
                     std::int64_t head, std::int64_t at, Reference& r) {
  const Query query(c, packed, row, head, at);
  const std::int64_t token = row * c.sequence + at;
  const std::size_t o = c.o_at(token, head);
  r.log_sum_exp.push_back(query.log_sum_exp);
  for (std::size_t j = 0; j < query.probabilities.size(); ++j) {
    const std::int64_t key = row * c.sequence + query.first + static_cast<std::int64_t>(j);
    const double p = query.probabilities[j];
    add_row(r.output, r.output_size, o, p, p, packed, c.v_at(key, head), c.head_size);
  }
  const double delta = product(r.output, o, d_output, o, c.head_size);
  const double delta_size = magnitude(r.output, o, d_output, o, c.head_size);
  for (std::size_t j = 0; j < query.probabilities.size(); ++j) {
    const std::int64_t key = row * c.sequence + query.first + static_cast<std::int64_t>(j);
    const double p = query.probabilities[j];
    const double dp = product(d_output, o, packed, c.v_at(key, head), c.head_size);
    const double dp_size = magnitude(d_output, o, packed, c.v_at(key, head), c.head_size);
    const double ds = p * (dp - delta) * c.scale();
    const double ds_size = p * (dp_size + delta_size) * c.scale();
    add_row(r.d_packed, r.d_packed_size, c.v_at(key, head), p, p, d_output, o, c.head_size);
    add_row(r.d_packed, r.d_packed_size, c.q_at(token, head), ds, ds_size, packed,
            c.k_at(key, head), c.head_size);
    add_row(r.d_packed, r.d_packed_size, c.k_at(key, head), ds, ds_size, packed,
            c.q_at(token, head), c.head_size);
  }
}

Reference reference(const Case& c, const Values& packed, const Values& d_output) {
  Reference r;
  r.output.resize(static_cast<std::size_t>(c.tokens() * c.heads * c.head_size));
  r.output_size = r.output;
  r.d_packed.resize(packed.size());
  r.d_packed_size = r.d_packed;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    for (std::int64_t head = 0; head < c.heads; ++head) {
      for (std::int64_t at = 0; at < c.sequence; ++at) {
        reference_query(c, packed, d_output, row, head, at, r);
      }
    }
  }
  return r;
}

struct Results {
  Tensor output;
  Tensor log_sum_exp;
  Tensor d_packed;
};

Results run(const Machine& machine, const Case& c, DType dtype, const Values& packed_values,
            const Values& d_output_values, std::size_t shift = 0) {
  const Tensor packed = machine.tensor(dtype, packed_values, shift);
  const Tensor d_output = machine.tensor(dtype, d_output_values, shift);
  Results results{machine.empty(dtype, c.tokens() * c.heads * c.head_size, shift),
                  machine.empty(DType::f32, c.tokens() * c.heads, shift),
                  machine.empty(dtype, c.tokens() * c.packed(), shift)};
  AttentionBackwardArgs args;
  args.forward = {c.rows, c.sequence, c.heads, c.kv_heads, c.head_size, c.window};
  args.forward.scale = static_cast<float>(c.scale());
  args.forward.q = packed.view();
  args.forward.k = packed.view().offset(c.heads * c.head_size);
  args.forward.v = packed.view().offset((c.heads + c.kv_heads) * c.head_size);
  args.forward.q_stride = args.forward.k_stride = args.forward.v_stride = c.packed();
  args.forward.output = results.output.view();
  args.forward.log_sum_exp = results.log_sum_exp.pointer();
  args.d_output = d_output.view();
  args.d_q = results.d_packed.view();
  args.d_k = args.d_q.offset(c.heads * c.head_size);
  args.d_v = args.d_q.offset((c.heads + c.kv_heads) * c.head_size);
  machine.run(args.forward);
  machine.run(args);
  return results;
}

void check(const Machine& machine, const Case& c, DType dtype) {
  SCOPED_TRACE(::testing::Message()
               << c.rows << " rows, " << c.sequence << " tokens, " << c.heads << "/" << c.kv_heads
               << " heads of " << c.head_size << ", window " << c.window << " " << name_of(dtype));
  const Values packed = random_values(c.tokens() * c.packed(), 1, dtype);
  const Values d_output = random_values(c.tokens() * c.heads * c.head_size, 2, dtype);
  const Reference expected = reference(c, packed, d_output);
  const Results got = run(machine, c, dtype, packed, d_output);
  // A score is a sum of D products below 1, in FP32: it is off by (D + 4) 2^-24 times scale D, and
  // so much, relatively, is its exponential; normalizing and summing over T keys adds T + 8
  // roundings. In bf16 each probability is rounded before it meets v (2^-8, relative to itself).
  const auto size = static_cast<double>(c.head_size);
  const double score_error = (size + 4) * 0x1p-24 * c.scale() * size;
  const double narrow = dtype == DType::bf16 ? 0x1p-8 : 0;
  const double sums = static_cast<double>(c.sequence + 8) * 0x1p-24;
  const double forward = narrow + 2 * score_error + sums;
  expect_near(got.output.read(), expected.output, expected.output_size, forward, dtype);
  const Values ones(expected.log_sum_exp.size(), 1);
  expect_near(got.log_sum_exp.read(), expected.log_sum_exp, ones, score_error + sums, DType::f32);
  // Backward: probabilities again, in bf16 the rounding of dS and, through delta, of the output;
  // sums over D, over T and, for keys and values, over the heads of a group.
  const double backward = 2 * narrow + 4 * score_error +
                          static_cast<double>(c.head_size + c.heads * c.sequence + 32) * 0x1p-24;
  expect_near(got.d_packed.read(), expected.d_packed, expected.d_packed_size, backward, dtype);
}

/// One token, one head, heads of 80, odd sizes; more than one block of queries (128) and more than
/// one tile of keys (512), with and without a window that begins inside a tile.
constexpr Case kCases[] = {
    {1, 1, 1, 1, 1, 0},     {2, 17, 1, 1, 3, 0},  {1, 65, 4, 2, 80, 0},  {2, 127, 3, 1, 17, 0},
    {1, 130, 2, 2, 64, 0},  {1, 700, 1, 1, 8, 0}, {1, 300, 2, 1, 16, 1}, {1, 300, 2, 1, 16, 100},
    {1, 900, 1, 1, 5, 600}, {3, 2, 2, 1, 127, 0},
};

TEST_P(OpsConformance, attention_forward_and_backward_match_the_reference) {
  const Machine usual = machine();
  for (const Case& c : kCases) {
    check(usual, c, DType::f32);
    check(usual, c, DType::bf16);
  }
}

TEST_P(OpsConformance, attention_on_every_table_matches_the_reference) {
  on_every_table([](const Machine& machine) {
    check(machine, {1, 130, 2, 1, 33, 0}, DType::f32);
    check(machine, {1, 130, 2, 1, 33, 0}, DType::bf16);
  });
}

TEST(Attention, reference_gradients_are_finite_differences) {
  const Case c{1, 5, 4, 2, 3, 3};
  Values packed = random_values(c.tokens() * c.packed(), 1, DType::f32);
  const Values d_output = random_values(c.tokens() * c.heads * c.head_size, 2, DType::f32);
  const Reference analytic = reference(c, packed, d_output);
  auto loss = [&] {
    const Reference r = reference(c, packed, d_output);
    return product(r.output, 0, d_output, 0, static_cast<std::int64_t>(d_output.size()));
  };
  // Central differences err by h^2 times the third derivative (of order 1) and by the rounding of
  // the losses (of order 10) over 2h.
  const double step = 1e-5;
  for (std::size_t i = 0; i < packed.size(); ++i) {
    const double value = packed[i];
    packed[i] = value + step;
    const double above = loss();
    packed[i] = value - step;
    const double below = loss();
    packed[i] = value;
    EXPECT_NEAR(analytic.d_packed[i], (above - below) / (2 * step), 1e-8) << i;
  }
}

TEST_P(OpsConformance, attention_alignment_and_number_of_threads_do_not_change_a_bit) {
  on_twins([](const Machine& one, const Machine& two) {
    const Case c{2, 300, 4, 2, 24, 0};
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Values packed = random_values(c.tokens() * c.packed(), 1, dtype);
      const Values d_output = random_values(c.tokens() * c.heads * c.head_size, 2, dtype);
      const Results first = run(one, c, dtype, packed, d_output);
      const Results second = run(two, c, dtype, packed, d_output, /*shift=*/4);
      EXPECT_EQ(first.output.bits(), second.output.bits());
      EXPECT_EQ(first.log_sum_exp.bits(), second.log_sum_exp.bits());
      EXPECT_EQ(first.d_packed.bits(), second.d_packed.bits());
    }
  });
}

TEST_P(OpsConformance, attention_memory_grows_with_the_sequence_not_its_square) {
  const Machine usual = machine();
  auto bytes = [&](std::int64_t sequence) {
    AttentionBackwardArgs args;
    args.forward = {1, sequence, 4, 2, 64, 0};
    return std::pair(usual.ops().scratch_bytes(args.forward), usual.ops().scratch_bytes(args));
  };
  const auto [forward_1k, backward_1k] = bytes(1024);
  const auto [forward_4k, backward_4k] = bytes(4096);
  EXPECT_EQ(forward_1k, forward_4k);
  EXPECT_LE(backward_4k, 4 * backward_1k);
}

}  // namespace
}  // namespace terrace::kernels
