#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace terrace {

enum class DType : std::uint8_t { f32, bf16, f16, i32 };

[[nodiscard]] constexpr std::size_t size_of(DType dtype) {
  return dtype == DType::f32 || dtype == DType::i32 ? 4 : 2;
}

/// "fp32", "bf16", "fp16", "int32": the names used in logs, keys and JSON.
[[nodiscard]] std::string_view name_of(DType dtype);
/// The inverse of `name_of`; also accepts "float32", "bfloat16", "float16".
[[nodiscard]] std::optional<DType> dtype_named(std::string_view name);

/// The upper half of an FP32 number.
struct Bf16 {
  std::uint16_t bits = 0;
  friend constexpr bool operator==(Bf16, Bf16) = default;
};

/// IEEE 754 binary16.
struct F16 {
  std::uint16_t bits = 0;
  friend constexpr bool operator==(F16, F16) = default;
};

[[nodiscard]] constexpr float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Round to nearest even; infinity is kept, a NaN keeps its sign and stays a (quiet) NaN.
[[nodiscard]] constexpr Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return Bf16{static_cast<std::uint16_t>((bits >> 16) | 0x0040U)};
  }
  return Bf16{static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

/// The rounding of an optimizer's bf16 parameter: the upper half of (bits + 0x8000), in every state
/// format, because only this rule lets 16 more bits give the FP32 master back. A NaN becomes its
/// sign and 0x7fc0.
[[nodiscard]] constexpr Bf16 to_parameter_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return Bf16{static_cast<std::uint16_t>(((bits >> 16) & 0x8000U) | 0x7fc0U)};
  }
  return Bf16{static_cast<std::uint16_t>((bits + 0x8000U) >> 16)};
}

[[nodiscard]] float to_float(F16 value);
/// Round to nearest even; overflow becomes infinity, subnormals are kept.
[[nodiscard]] F16 to_f16(float value);

}  // namespace terrace
