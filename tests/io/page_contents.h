#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "terrace/core/random.h"

namespace terrace::testing {

/// Fills a page with bytes that are a function of its id and a version, so that a test can tell
/// which write it sees.
inline void fill_page(std::span<std::byte> target, std::uint64_t page, std::uint64_t version) {
  const RandomStream random(page, version);
  // Eight bytes are drawn and then counted up: fast, and different in every block.
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < target.size(); i += 8) {
    word = i % 4096 == 0 ? random.bits(i) : word + 0x9e3779b97f4a7c15ULL;
    std::memcpy(target.data() + i, &word, std::min<std::size_t>(8, target.size() - i));
  }
}

/// memcmp: compared one std::byte at a time, megabytes take a second under the sanitizers.
[[nodiscard]] inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace terrace::testing
