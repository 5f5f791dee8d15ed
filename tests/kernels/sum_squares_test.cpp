#include "terrace/kernels/sum_squares.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/optimizer_conformance.h"
#include "kernels/optimizer_reference.h"

namespace terrace::kernels {
namespace {

/// The tree of the header, written plainly.
double block_sum(std::span<const std::byte> values, DType dtype, std::size_t begin,
                 std::size_t end) {
  std::array<double, 32> partials{};
  for (std::size_t i = begin; i < end; ++i) {
    const double x = reference::get_float(values, dtype, i);
    partials[(i - begin) % 32] += x * x;
  }
  for (std::size_t half = 16; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) partials[i] += partials[i + half];
  }
  return partials[0];
}

SquareSums sums_of(const OptimizerMachine& machine, OptimizerOps& ops,
                   std::span<const std::byte> values, DType dtype) {
  const DeviceBytes there = machine.memory(values);
  const DeviceBytes result = machine.memory(sizeof(SquareSums));
  machine.run(ops, SumSquaresArgs{static_cast<std::int64_t>(values.size() / size_of(dtype)),
                                  {there.pointer(), dtype},
                                  result.pointer()});
  SquareSums sums;
  result.read(std::as_writable_bytes(std::span(&sums, 1)));
  return sums;
}

// Sums of blocks are added exactly, so a bit in one of them is one in the digits.
TEST_P(OptimizerConformance, square_sums_are_those_of_the_plain_tree_at_every_dtype_and_length) {
  on_every_table([&](OptimizerOps& ops) {
    std::mt19937 random(3);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const std::size_t count : {1, 7, 31, 32, 33, 127, 128, 129, 1000, 30'000}) {
        const reference::Bytes values = reference::random_gradient(random, dtype, count);
        ExactSum expected;
        for (std::size_t begin = 0; begin < count; begin += 128) {
          expected.add(block_sum(values, dtype, begin, std::min(begin + 128, count)));
        }
        const SquareSums sums = sums_of(machine_, ops, values, dtype);
        ASSERT_EQ(sums.digits, expected.digits()) << name_of(dtype) << " " << count;
        EXPECT_EQ(sums.nonfinite, 0);
        EXPECT_EQ(sums.first, -1);
      }
    }
  });
}

TEST_P(OptimizerConformance, square_sums_do_not_overflow) {
  const auto sum = [&](float value) {
    const std::vector<float> values(128, value);
    return ExactSum::from_digits(
               sums_of(machine_, *usual_, std::as_bytes(std::span(values)), DType::f32).digits)
        .value();
  };
  for (const float value : {1e19F, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(sum(value), 128 * (static_cast<double>(value) * static_cast<double>(value)));
  }
}

TEST_P(OptimizerConformance, square_sums_count_and_place_what_is_not_finite) {
  on_every_table([&](OptimizerOps& ops) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> values(50'000, 1);
      values[40'001] = values[31'234] = bad;
      values[31'235] = std::numeric_limits<float>::max();
      const SquareSums sums = sums_of(machine_, ops, std::as_bytes(std::span(values)), DType::f32);
      EXPECT_EQ(sums.nonfinite, 2);
      EXPECT_EQ(sums.first, 31'234);
      // Two blocks are left out.
      EXPECT_EQ(ExactSum::from_digits(sums.digits).value(), 50'000 - 2 * 128);
    }
  });
}

}  // namespace
}  // namespace terrace::kernels
