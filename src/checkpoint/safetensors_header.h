#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terrace/checkpoint/safetensors.h"

namespace terrace::checkpoint {

/// What a safetensors file's JSON header says.
struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of their data
  std::vector<std::pair<std::string, std::string>> metadata;
};

/// Bytes of an element of a dtype named as in the format; 0 for one that is not known.
[[nodiscard]] std::uint64_t element_bytes(std::string_view dtype);

/// Parses and checks all that the header alone can tell: syntax, duplicate names, each range
/// against its shape, overlaps and holes. `path` is named in messages.
/// Errors: kind `kind`, naming the tensor.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(std::string_view json,
                                                         const std::string& path, ErrorKind kind);

/// The header of a file of these tensors in this order, all of one dtype, padded with spaces so
/// that the data begins at a multiple of 8. The leading length is not part of it.
[[nodiscard]] std::string make_safetensors_header(DType dtype,
                                                  std::span<const TensorShape> tensors);

}  // namespace terrace::checkpoint
