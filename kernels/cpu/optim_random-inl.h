// Random bits for the stochastic rounding of one tile of parameters. Included once a target.
#if defined(TERRACE_OPTIM_RANDOM_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_OPTIM_RANDOM_INL
#undef TERRACE_OPTIM_RANDOM_INL
#else
#define TERRACE_OPTIM_RANDOM_INL
#endif

#include <array>
#include <cstdint>

#include "cpu/optim_convert-inl.h"
#include "terrace/core/random.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {

// How random numbers fall to parameters. Philox gives four words a call. Tile T is the parameters
// 64 T to 64 T + 63; element e of it takes word e / 16 of the call with counter (16 T + e % 16,
// step) and key seed. So up to 16 lanes make neighbouring calls side by side, and the word an
// element gets depends on its index alone, not on the number of lanes.
constexpr std::int64_t kTile = 64;
constexpr std::int64_t kTileCalls = 16;
constexpr std::uint32_t kRoundingStream = 0x53520000U;  // set apart from other uses of the seed

struct PhiloxKey {
  std::uint64_t seed;
  std::uint64_t step;
};

HWY_INLINE std::uint32_t low_word(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
HWY_INLINE std::uint32_t high_word(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE void fill_tile(std::int64_t tile, PhiloxKey key, std::uint32_t* HWY_RESTRICT words) {
  for (std::int64_t call = 0; call < kTileCalls; ++call) {
    const auto counter = static_cast<std::uint64_t>(tile * kTileCalls + call);
    const auto four = philox({low_word(counter), high_word(counter), low_word(key.step),
                              high_word(key.step) ^ kRoundingStream},
                             {low_word(key.seed), high_word(key.seed)});
    for (std::int64_t i = 0; i < 4; ++i) {
      words[i * kTileCalls + call] = four[static_cast<std::size_t>(i)];
    }
  }
}

#else

struct WideProduct {
  WordV high;
  WordV low;
};

HWY_INLINE WideProduct wide_multiply(WordV a, WordV b) {
  const Words du;
  const hn::RepartitionToWide<Words> du64;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(du64, a))), b);
  return {hn::OddEven(hn::BitCast(du, odd), hn::BitCast(du, hn::ShiftRight<32>(even))),
          hn::OddEven(hn::BitCast(du, hn::ShiftLeft<32>(odd)), hn::BitCast(du, even))};
}

/// Writes the 64 words of `tile`; constants and rounds as in core/random.cpp.
HWY_INLINE void fill_tile(std::int64_t tile, PhiloxKey key, std::uint32_t* HWY_RESTRICT words) {
  const Words du;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(du));
  const WordV multiplier0 = hn::Set(du, 0xD2511F53U);
  const WordV multiplier1 = hn::Set(du, 0xCD9E8D57U);
  for (std::int64_t call = 0; call < kTileCalls; call += lanes) {
    const auto counter = static_cast<std::uint64_t>(tile * kTileCalls + call);
    // A tile's 16 counters differ in their lowest four bits only, so there is no carry.
    WordV c0 = hn::Iota(du, low_word(counter));
    WordV c1 = hn::Set(du, high_word(counter));
    WordV c2 = hn::Set(du, low_word(key.step));
    WordV c3 = hn::Set(du, high_word(key.step) ^ kRoundingStream);
    std::uint32_t k0 = low_word(key.seed);
    std::uint32_t k1 = high_word(key.seed);
    for (int round = 0; round < 10; ++round) {
      const WideProduct p0 = wide_multiply(c0, multiplier0);
      const WideProduct p1 = wide_multiply(c2, multiplier1);
      c0 = hn::Xor(hn::Xor(p1.high, c1), hn::Set(du, k0));
      c1 = p1.low;
      c2 = hn::Xor(hn::Xor(p0.high, c3), hn::Set(du, k1));
      c3 = p0.low;
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    hn::StoreU(c0, du, words + call);
    hn::StoreU(c1, du, words + kTileCalls + call);
    hn::StoreU(c2, du, words + 2 * kTileCalls + call);
    hn::StoreU(c3, du, words + 3 * kTileCalls + call);
  }
}

#endif

/// A moment to bf16, in the lower half of a word: adds 16 random bits (`random` < 2^16) below the
/// last kept one and cuts, so that the mean is the value. A finite value stays finite.
HWY_INLINE WordV stochastic_bf16(FloatV value, WordV random) {
  const Words du;
  const Ints di;
  const WordV bits = hn::BitCast(du, value);
  const WordV magnitude = magnitude_of(bits);
  const auto rounded =
      hn::Min(hn::BitCast(di, hn::Add(magnitude, random)), hn::Set(di, kInfinity - 1));
  const auto exact = hn::BitCast(di, magnitude);
  const auto infinity = hn::Set(di, kInfinity);
  auto result = hn::IfThenElse(hn::Lt(exact, infinity), rounded, infinity);
  result = hn::IfThenElse(hn::Gt(exact, infinity), hn::Set(di, 0x7fc00000), result);
  const WordV sign = hn::AndNot(hn::Set(du, 0x7fffffffU), bits);
  return hn::ShiftRight<16>(hn::Or(hn::BitCast(du, result), sign));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
