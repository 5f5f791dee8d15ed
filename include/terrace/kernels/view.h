#pragma once

#include <cstdint>

#include "terrace/core/dtype.h"
#include "terrace/device/memory.h"

namespace terrace::kernels {

/// Elements of one dtype in device memory; the shape is the operation's business. Owns nothing.
struct View {
  device::Pointer data{};
  DType dtype = DType::f32;

  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(data); }
  /// The view that begins `elements` further on.
  [[nodiscard]] View offset(std::int64_t elements) const {
    return {data + static_cast<std::uint64_t>(elements) * size_of(dtype), dtype};
  }
};

}  // namespace terrace::kernels
