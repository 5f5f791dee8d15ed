#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::io {

/// 64 random bits from the system. Errors: io.
[[nodiscard]] std::uint64_t draw_bits();

/// What names a run wherever it leaves something: 128 random bits. Paths, hosts and process numbers
/// are for people only, as two containers have the same.
struct RunId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  /// Errors: io.
  [[nodiscard]] static RunId draw();
  /// The inverse of `text`; none of what is no id.
  [[nodiscard]] static RunId parse(std::string_view text);

  /// 32 hex digits.
  [[nodiscard]] std::string text() const;
  /// False for none: what says nothing of its run.
  explicit operator bool() const { return high != 0 || low != 0; }
  friend bool operator==(const RunId&, const RunId&) = default;
};

/// What names a store of a run, on each of its drives: a run that begins anew makes another one.
struct StoreId {
  RunId run = {};
  std::uint64_t store = 0;  ///< random

  friend bool operator==(const StoreId&, const StoreId&) = default;
};

}  // namespace terrace::io
