#include "terrace/kernels/sum_squares.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

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

TEST(SumSquares, equals_the_plain_tree_on_every_target_dtype_and_length) {
  std::mt19937 random(3);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::size_t count : {1, 7, 31, 32, 33, 127, 128, 129, 1000}) {
      const reference::Bytes values = reference::random_gradient(random, dtype, count);
      for (const CpuTarget target : CpuTarget::all()) {
        std::vector<double> sums((count + 127) / 128);
        sum_squares(values, dtype, sums, target);
        for (std::size_t b = 0; b < sums.size(); ++b) {
          ASSERT_EQ(sums[b], block_sum(values, dtype, b * 128, std::min(b * 128 + 128, count)))
              << target.name() << " " << name_of(dtype) << " " << count;
        }
      }
    }
  }
}

TEST(SumSquares, large_values_do_not_overflow_and_others_are_not_finite) {
  std::vector<float> values(128, 1e19F);
  const auto bytes = std::as_bytes(std::span(values));
  std::vector<double> sum(1);
  const double square = static_cast<double>(1e19F) * static_cast<double>(1e19F);
  sum_squares(bytes, DType::f32, sum);
  EXPECT_EQ(sum[0], 128 * square);
  for (float& value : values) value = std::numeric_limits<float>::max();
  sum_squares(bytes, DType::f32, sum);
  EXPECT_TRUE(std::isfinite(sum[0]));
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    values[77] = bad;
    for (const CpuTarget target : CpuTarget::all()) {
      sum_squares(bytes, DType::f32, sum, target);
      EXPECT_FALSE(std::isfinite(sum[0])) << target.name();
    }
  }
}

}  // namespace
}  // namespace terrace::kernels
