#pragma once

#include <array>
#include <cstdint>

namespace terrace {

/// Philox4x32-10: a counter-based generator, a pure function of key and counter, so that a random
/// number depends on what it is for and never on threads, order or placement.
/// Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
[[nodiscard]] std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key);

/// Random numbers for one purpose: `seed` names the run, `stream` the purpose. Element `index` of a
/// stream is the same wherever and whenever it is asked for. Thread-safe (immutable).
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  /// 64 random bits.
  [[nodiscard]] std::uint64_t bits(std::uint64_t index) const;
  /// Uniform in [0, 1), 53 bits.
  [[nodiscard]] double uniform(std::uint64_t index) const;
  /// Standard normal, by Box and Muller in double precision.
  [[nodiscard]] double normal(std::uint64_t index) const;
  /// Uniform in [0, bound) without bias worth naming (2^-64 relative); `bound` > 0.
  [[nodiscard]] std::uint64_t below(std::uint64_t index, std::uint64_t bound) const;

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
};

}  // namespace terrace
