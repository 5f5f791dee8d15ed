#pragma once

#include <cstddef>
#include <span>

#include "terrace/core/dtype.h"

namespace terrace::checkpoint {

/// Converts stored numbers to FP32, exactly. `source` holds values.size() numbers of `dtype` (f32,
/// bf16 or f16), at any alignment.
void to_floats(DType dtype, std::span<const std::byte> source, std::span<float> values);

/// Converts FP32 numbers to `dtype` (f32, bf16 or f16): bf16 by the rule for parameters
/// (`to_parameter_bf16`), f16 to nearest even. `target` has room for values.size() numbers.
void from_floats(DType dtype, std::span<const float> values, std::span<std::byte> target);

}  // namespace terrace::checkpoint
