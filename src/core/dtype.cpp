#include "terrace/core/dtype.h"

namespace terrace {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
    case DType::i32:
      return "int32";
  }
  return "?";
}

std::optional<DType> dtype_named(std::string_view name) {
  if (name == "fp32" || name == "float32" || name == "f32") return DType::f32;
  if (name == "bf16" || name == "bfloat16") return DType::bf16;
  if (name == "fp16" || name == "float16" || name == "f16") return DType::f16;
  if (name == "int32") return DType::i32;
  return std::nullopt;
}

float to_float(F16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffU;
  if (magnitude >= 0x7c00U) {  // infinity and NaN
    return std::bit_cast<float>(sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13));
  }
  // A subnormal half is magnitude * 2^-24, which FP32 holds exactly.
  if (magnitude < 0x0400U) {
    const float positive = static_cast<float>(magnitude) * 0x1p-24F;
    return sign != 0 ? -positive : positive;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112U << 23)));
}

F16 to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return F16{static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU))};
  }
  if (magnitude >= 0x477ff000U) return F16{static_cast<std::uint16_t>(sign | 0x7c00U)};
  if (magnitude < 0x38800000U) {
    // Adding 0.5 places the half's last subnormal bit at the FP32 unit in the last place.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return F16{static_cast<std::uint16_t>(
        sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F)))};
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U) - (112U << 23);
  return F16{static_cast<std::uint16_t>(sign | (rounded >> 13))};
}

}  // namespace terrace
