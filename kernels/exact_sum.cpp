#include "terrace/kernels/exact_sum.h"

#include <bit>
#include <cassert>
#include <cmath>

namespace terrace::kernels {
namespace {

constexpr int kUnitExponent = -298;
constexpr int kDigitBits = 32;
constexpr std::uint64_t kDigitMask = (std::uint64_t{1} << kDigitBits) - 1;
constexpr int kMantissaBits = 52;
constexpr int kExponentBias = 1075;  // of a mantissa taken as an integer
__extension__ using Wide = unsigned __int128;

}  // namespace

void ExactSum::add(double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto exponent = static_cast<int>(bits >> kMantissaBits);
  // Below 2^-298 there is only 0, so a number that is not 0 is not a subnormal double either.
  if (exponent == 0) return;
  std::uint64_t mantissa =
      (bits & ((std::uint64_t{1} << kMantissaBits) - 1)) | (std::uint64_t{1} << kMantissaBits);
  int shift = exponent - kExponentBias - kUnitExponent;
  if (shift < 0) {
    mantissa >>= -shift;  // these bits are 0: the value is a multiple of the unit
    shift = 0;
  }
  const auto first = static_cast<std::size_t>(shift / kDigitBits);
  assert(first + 2 < kLimbs);
  const Wide shifted = Wide{mantissa} << (shift % kDigitBits);
  limbs_[first] += static_cast<std::uint64_t>(shifted) & kDigitMask;
  limbs_[first + 1] += static_cast<std::uint64_t>(shifted >> kDigitBits) & kDigitMask;
  limbs_[first + 2] += static_cast<std::uint64_t>(shifted >> (2 * kDigitBits));
  // Each addition is below 2^32, so 2^30 of them stay far below 2^64.
  if (++additions_ == (1U << 30)) carry();
}

void ExactSum::add(const ExactSum& other) {
  ExactSum tidy = other;
  tidy.carry();
  for (std::size_t i = 0; i < kLimbs; ++i) limbs_[i] += tidy.limbs_[i];
  if (++additions_ == (1U << 30)) carry();
}

void ExactSum::carry() {
  for (std::size_t i = 0; i + 1 < kLimbs; ++i) {
    limbs_[i + 1] += limbs_[i] >> kDigitBits;
    limbs_[i] &= kDigitMask;
  }
  additions_ = 0;
}

double ExactSum::value() const {
  double sum = 0;
  int exponent = kUnitExponent;
  for (const double digit : digits()) {
    sum += std::ldexp(digit, exponent);
    exponent += kDigitBits;
  }
  return sum;
}

std::array<double, ExactSum::kLimbs> ExactSum::digits() const {
  ExactSum tidy = *this;
  tidy.carry();
  std::array<double, kLimbs> digits{};
  for (std::size_t i = 0; i < kLimbs; ++i) digits[i] = static_cast<double>(tidy.limbs_[i]);
  return digits;
}

ExactSum ExactSum::from_digits(std::span<const double, kLimbs> digits) {
  ExactSum sum;
  for (std::size_t i = 0; i < kLimbs; ++i) sum.limbs_[i] = static_cast<std::uint64_t>(digits[i]);
  sum.carry();
  return sum;
}

}  // namespace terrace::kernels
