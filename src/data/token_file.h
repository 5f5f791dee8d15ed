#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "terrace/io/file.h"

namespace terrace::data {

/// How the ids of a token file lie in it: little-endian integers, one after the other.
struct TokenLayout {
  std::uint64_t offset = 0;  ///< of the first id
  std::int64_t tokens = 0;
  std::size_t width = 2;   ///< bytes an id: 2 or 4
  bool is_signed = false;  ///< matters for messages: an id below 0 is outside every vocabulary
};

/// Why a file that may have tokens in it, by its name, has none: a clause to follow its path.
struct NoTokens {
  std::string reason;
};

/// Reads the header of a NumPy array file: versions 1 to 3, one dimension, `<u2`, `<u4` or `<i4`.
/// Errors: data, when it is one but its size does not agree with its header.
/// Source: NumPy, "The .npy format", NEP 1.
[[nodiscard]] std::variant<TokenLayout, NoTokens> read_npy_header(const io::InputFile& file);

/// Reads the header of a token file of llm.c: 256 little-endian int32, of which the first three are
/// magic, version and count; then uint16 (magic 20240520, version 1) or uint32 (20240801, 7).
/// Errors: data, when it is one but its size does not agree with its header.
/// Source: karpathy/llm.c, dev/data/data_common.py.
[[nodiscard]] std::variant<TokenLayout, NoTokens> read_llmc_header(const io::InputFile& file);

}  // namespace terrace::data
