#include "terrace/core/random.h"

#include <cmath>
#include <numbers>

namespace terrace {
namespace {

constexpr std::uint32_t kMultiplier0 = 0xD2511F53;  // Salmon et al., table 2
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
constexpr std::uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
constexpr int kRounds = 10;

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

std::uint64_t RandomStream::bits(std::uint64_t index) const {
  const auto words =
      philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
              static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)},
             {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
  return (std::uint64_t{words[1]} << 32) | words[0];
}

double RandomStream::uniform(std::uint64_t index) const {
  return static_cast<double>(bits(index) >> 11) * 0x1p-53;
}

double RandomStream::normal(std::uint64_t index) const {
  const std::uint64_t word = bits(index);
  // Two 32-bit uniforms; the first is shifted off zero so that its logarithm is finite.
  const double u = (static_cast<double>(word & 0xffffffffU) + 0.5) * 0x1p-32;
  const double angle = static_cast<double>(word >> 32) * 0x1p-32 * 2 * std::numbers::pi;
  return std::sqrt(-2 * std::log(u)) * std::cos(angle);
}

std::uint64_t RandomStream::below(std::uint64_t index, std::uint64_t bound) const {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((Wide{bits(index)} * bound) >> 64);
}

}  // namespace terrace
