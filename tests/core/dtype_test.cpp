#include "terrace/core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace terrace {
namespace {

/// The value of a binary format with `exponent_bits` and `fraction_bits`, by IEEE 754's definition
/// (section 3.4), in double, which holds every value of both formats exactly.
double value_by_definition(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

double bf16_value(std::uint16_t bits) { return value_by_definition(bits, 8, 7); }
double f16_value(std::uint16_t bits) { return value_by_definition(bits, 5, 10); }

TEST(Bf16, widens_every_pattern_exactly) {
  for (unsigned bits = 0; bits <= 0xffff; ++bits) {
    const Bf16 half{static_cast<std::uint16_t>(bits)};
    const double expected = bf16_value(half.bits);
    const float value = to_float(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << std::hex << bits;
    } else {
      EXPECT_EQ(value, expected) << std::hex << bits;
      EXPECT_EQ(std::signbit(value), bits >= 0x8000) << std::hex << bits;
    }
  }
}

TEST(F16, widens_every_pattern_exactly) {
  for (unsigned bits = 0; bits <= 0xffff; ++bits) {
    const F16 half{static_cast<std::uint16_t>(bits)};
    const double expected = f16_value(half.bits);
    const float value = to_float(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << std::hex << bits;
    } else {
      EXPECT_EQ(value, expected) << std::hex << bits;
      EXPECT_EQ(std::signbit(value), bits >= 0x8000) << std::hex << bits;
    }
  }
}

TEST(Bf16, every_pattern_survives_the_way_there_and_back) {
  for (unsigned bits = 0; bits <= 0xffff; ++bits) {
    const Bf16 half{static_cast<std::uint16_t>(bits)};
    const bool nan = (bits & 0x7fffU) > 0x7f80U;
    EXPECT_EQ(to_bf16(to_float(half)).bits, nan ? bits | 0x40U : bits) << std::hex << bits;
    EXPECT_EQ(to_parameter_bf16(to_float(half)).bits, nan ? (bits & 0x8000U) | 0x7fc0U : bits)
        << std::hex << bits;
  }
}

TEST(F16, every_pattern_survives_the_way_there_and_back) {
  for (unsigned bits = 0; bits <= 0xffff; ++bits) {
    const F16 half{static_cast<std::uint16_t>(bits)};
    const bool nan = (bits & 0x7fffU) > 0x7c00U;
    EXPECT_EQ(to_f16(to_float(half)).bits, nan ? bits | 0x200U : bits) << std::hex << bits;
  }
}

/// What a positive float between the neighbours `low` and `low + 1` (patterns of a format whose
/// values `value_of` gives) rounds to: the nearer one, and of two equally near the even one. The
/// format's infinity stands for the value that would follow its largest.
std::uint16_t nearest_even(double x, std::uint16_t low, double low_value, double high_value) {
  const double middle = (low_value + high_value) / 2;
  if (x < middle) return low;
  if (x > middle) return static_cast<std::uint16_t>(low + 1);
  return static_cast<std::uint16_t>(low + (low & 1));
}

struct Format {
  std::uint16_t infinity;
  double past_largest;  ///< 2^(largest exponent + 1)
  std::function<double(std::uint16_t)> value_of;
  std::function<std::uint16_t(float)> round;
};

/// Tries the middle of every two neighbours, the floats next to it, and both ends, of each sign.
void expect_rounds_to_nearest_even(const Format& format) {
  for (std::uint16_t low = 0; low < format.infinity; ++low) {
    const double low_value = format.value_of(low);
    const bool last = low + 1 == format.infinity;
    const double high_value =
        last ? format.past_largest : format.value_of(static_cast<std::uint16_t>(low + 1));
    const double middle = (low_value + high_value) / 2;
    const auto at_middle = static_cast<float>(middle);  // exact: one bit more than the format has
    ASSERT_EQ(at_middle, middle);
    for (const float x : {std::nextafter(at_middle, 0.0F), at_middle,
                          std::nextafter(at_middle, std::numeric_limits<float>::infinity())}) {
      const std::uint16_t expected = nearest_even(x, low, low_value, high_value);
      ASSERT_EQ(format.round(x), expected) << x;
      ASSERT_EQ(format.round(-x), expected | 0x8000) << -x;
    }
  }
}

TEST(Bf16, rounds_to_nearest_even_between_every_two_neighbours) {
  expect_rounds_to_nearest_even(
      {0x7f80, 0x1p128, bf16_value, [](float x) { return to_bf16(x).bits; }});
}

TEST(F16, rounds_to_nearest_even_between_every_two_neighbours) {
  expect_rounds_to_nearest_even(
      {0x7c00, 0x1p16, f16_value, [](float x) { return to_f16(x).bits; }});
}

TEST(F16, overflow_becomes_infinity_and_underflow_zero_with_the_sign_kept) {
  EXPECT_EQ(to_f16(65519.996F).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0F).bits, 0x7c00);
  EXPECT_EQ(to_f16(-std::numeric_limits<float>::max()).bits, 0xfc00);
  EXPECT_EQ(to_f16(std::numeric_limits<float>::infinity()).bits, 0x7c00);
  EXPECT_EQ(to_f16(-std::numeric_limits<float>::denorm_min()).bits, 0x8000);
}

TEST(Nan, stays_a_nan_of_its_sign_even_with_its_low_bits_alone) {
  for (const std::uint32_t bits : {0x7f800001U, 0xff800001U, 0x7fc12345U, 0xffffffffU}) {
    const auto value = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(to_float(to_bf16(value)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(to_float(to_f16(value)))) << std::hex << bits;
    EXPECT_EQ(to_bf16(value).bits & 0x8000U, (bits >> 16) & 0x8000U) << std::hex << bits;
    EXPECT_EQ(to_f16(value).bits & 0x8000U, (bits >> 16) & 0x8000U) << std::hex << bits;
    EXPECT_EQ(to_parameter_bf16(value).bits, ((bits >> 16) & 0x8000U) | 0x7fc0U)
        << std::hex << bits;
  }
}

// The rule of the optimizer's parameter: halves go away from zero, so that master minus parameter
// always fits a signed 16-bit remainder of the bits.
TEST(ParameterBf16, is_the_upper_half_after_adding_half_a_unit) {
  for (std::uint32_t upper = 0; upper < 0x7f80; ++upper) {
    for (const std::uint32_t lower : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const std::uint32_t bits = (upper << 16) | lower;
      const std::uint16_t expected =
          static_cast<std::uint16_t>(lower >= 0x8000U ? upper + 1 : upper);
      ASSERT_EQ(to_parameter_bf16(std::bit_cast<float>(bits)).bits, expected) << std::hex << bits;
      ASSERT_EQ(to_parameter_bf16(std::bit_cast<float>(bits | 0x80000000U)).bits,
                expected | 0x8000U)
          << std::hex << bits;
      const auto remainder = static_cast<std::int32_t>(bits - (std::uint32_t{expected} << 16));
      ASSERT_GE(remainder, -32768) << std::hex << bits;
      ASSERT_LE(remainder, 32767) << std::hex << bits;
    }
  }
}

TEST(DTypeName, is_read_back_and_knows_the_long_forms) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i32}) {
    EXPECT_EQ(dtype_named(name_of(dtype)), dtype);
  }
  EXPECT_EQ(dtype_named("float32"), DType::f32);
  EXPECT_EQ(dtype_named("bfloat16"), DType::bf16);
  EXPECT_EQ(dtype_named("float16"), DType::f16);
  EXPECT_EQ(dtype_named("fp8"), std::nullopt);
  EXPECT_EQ(dtype_named(""), std::nullopt);
}

}  // namespace
}  // namespace terrace
