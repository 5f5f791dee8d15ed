#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace terrace::kernels {

/// An exact sum of sums of squares of FP32 numbers: a fixed-point integer that is wide enough for
/// all of them, so additions commute and associate and the result depends neither on threads nor on
/// ranks nor on the order of arrival. Unit 2^-298 (the square of the smallest FP32 number); the top
/// is 2^342, more than 2^80 squares of the largest one.
/// Source: Kulisch, "Computer Arithmetic and Validity", 2008, the complete register.
/// Thread-compatible.
class ExactSum {
 public:
  static constexpr std::size_t kLimbs = 20;

  /// `value`: finite, not negative, a multiple of 2^-298, below 2^300.
  void add(double value);
  void add(const ExactSum& other);

  /// The sum, rounded to double (to within two units in the last place, the same for equal sums).
  [[nodiscard]] double value() const;

  /// The sum as digits in base 2^32, the lowest first. Each is an integer below 2^32, so up to 2^20
  /// such vectors may be added element by element without rounding (an all-reduce in double).
  [[nodiscard]] std::array<double, kLimbs> digits() const;
  /// The inverse, also of an element-wise sum of several vectors of digits.
  [[nodiscard]] static ExactSum from_digits(std::span<const double, kLimbs> digits);

 private:
  void carry();

  // Digits in base 2^32; between carries each may grow to 2^63.
  std::array<std::uint64_t, kLimbs> limbs_{};
  std::uint32_t additions_ = 0;  // since the last carry
};

}  // namespace terrace::kernels
