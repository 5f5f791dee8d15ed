#pragma once

#include <bit>
#include <cstdint>

#include "terrace/core/dtype.h"

namespace terrace::kernels {

/// An FP32 number as a bf16 parameter and a 16-bit remainder.
///
/// Why it is exact: the parameter is the upper half of (bits + 0x8000), so it is the upper half of
/// the bits plus the top bit of the lower half. The remainder is the lower half, whose top bit says
/// whether to take one off again. Nearest even would need one bit more, for the ties. There are
/// more NaN patterns than codes left, so a NaN becomes its sign and 0x7fc0 with remainder 0.
struct SplitFloat {
  Bf16 parameter;
  std::uint16_t remainder = 0;
};

[[nodiscard]] constexpr SplitFloat split_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return {to_parameter_bf16(value), is_nan ? std::uint16_t{0} : static_cast<std::uint16_t>(bits)};
}

[[nodiscard]] constexpr float join_float(SplitFloat split) {
  const std::uint32_t upper = std::uint32_t{split.parameter.bits} - (split.remainder >> 15);
  return std::bit_cast<float>((upper << 16) | split.remainder);
}

}  // namespace terrace::kernels
