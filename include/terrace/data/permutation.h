#pragma once

#include <array>
#include <cstdint>

namespace terrace::data {

/// A random order of the numbers [0, count), as a pure function of (seed, epoch, index): nothing is
/// stored, so any index of any epoch costs the same, and a position in the order is one number.
///
/// It is a balanced Feistel network over the smallest even number of bits that holds `count`, with
/// Philox as the round function; a value outside [0, count) is put through again until it falls
/// inside ("cycle walking"), less than four times on average (more below 256 numbers).
/// Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, section 4
/// and 5.
///
/// Thread-safe (immutable).
class Permutation {
 public:
  /// `count` in [1, 2^62], `epoch` >= 0.
  Permutation(std::uint64_t seed, std::int64_t epoch, std::int64_t count);

  [[nodiscard]] std::int64_t count() const { return count_; }
  /// The number at place `index`, 0 <= index < count.
  [[nodiscard]] std::int64_t operator()(std::int64_t index) const;

 private:
  [[nodiscard]] std::uint64_t shuffle_once(std::uint64_t value) const;

  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 2> epoch_;
  std::int64_t count_;
  unsigned half_bits_;
};

}  // namespace terrace::data
