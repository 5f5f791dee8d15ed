#pragma once

#include <fmt/core.h>

#include <charconv>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace terrace::checkpoint {

/// A 64-bit checksum as JSON has it, whose numbers stop at 53 bits in many readers: 16 hex digits.
[[nodiscard]] inline std::string to_hex(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

/// The inverse. Throws `std::invalid_argument`.
[[nodiscard]] inline std::uint64_t from_hex(const std::string& text) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, code] = std::from_chars(text.data(), end, value, 16);
  if (code != std::errc() || stopped != end || text.empty()) {
    throw std::invalid_argument("\"" + text + "\" is not a checksum in hex digits");
  }
  return value;
}

}  // namespace terrace::checkpoint
