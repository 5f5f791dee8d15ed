#include "terrace/data/permutation.h"

#include <algorithm>
#include <bit>

#include "terrace/core/error.h"
#include "terrace/core/random.h"

namespace terrace::data {
namespace {

/// Four rounds of an ideal round function are indistinguishable from random (Luby and Rackoff);
/// twice as many, because the halves of a small domain have few bits.
constexpr std::uint32_t kRounds = 8;
/// Below 2^8 numbers the network stays at 2 x 4 bits: narrower halves have too few functions.
constexpr unsigned kHalfBitsMin = 4;
/// "shuf" and "fle ": keeps these draws apart from what else the run draws with the same seed.
constexpr std::array<std::uint32_t, 2> kPurpose = {0x73687566, 0x666c6520};

}  // namespace

Permutation::Permutation(std::uint64_t seed, std::int64_t epoch, std::int64_t count)
    : key_{static_cast<std::uint32_t>(seed) ^ kPurpose[0],
           static_cast<std::uint32_t>(seed >> 32) ^ kPurpose[1]},
      epoch_{static_cast<std::uint32_t>(epoch),
             static_cast<std::uint32_t>(static_cast<std::uint64_t>(epoch) >> 32)},
      count_(count) {
  require(count >= 1 && count <= std::int64_t{1} << 62 && epoch >= 0, ErrorKind::internal,
          "a permutation of {} numbers in epoch {} was asked for", count, epoch);
  const auto bits = static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
  half_bits_ = std::max(kHalfBitsMin, (bits + 1) / 2);
}

std::uint64_t Permutation::shuffle_once(std::uint64_t value) const {
  const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << half_bits_) - 1);
  auto left = static_cast<std::uint32_t>(value >> half_bits_);
  auto right = static_cast<std::uint32_t>(value) & mask;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const auto words = philox({right, round, epoch_[0], epoch_[1]}, key_);
    const std::uint32_t mixed = left ^ (words[0] & mask);
    left = right;
    right = mixed;
  }
  return (std::uint64_t{left} << half_bits_) | right;
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  require(index >= 0 && index < count_, ErrorKind::internal,
          "place {} of a permutation of {} numbers was asked for", index, count_);
  // Ends: the network permutes its domain, so the walk follows a cycle that contains `index`
  // itself.
  auto value = static_cast<std::uint64_t>(index);
  do {
    value = shuffle_once(value);
  } while (value >= static_cast<std::uint64_t>(count_));
  return static_cast<std::int64_t>(value);
}

}  // namespace terrace::data
