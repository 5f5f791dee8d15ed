#include "pace.h"

#include <algorithm>
#include <cmath>

namespace terrace::runtime {

std::int64_t Pace::put(double work, std::int64_t now_us) {
  const double start = std::max(free_us_, static_cast<double>(now_us) - late_us_);
  late_us_ = 0;
  constexpr double kForeverUs = 0x1p62;
  free_us_ = std::min(start + work / rate_ * 1e6, kForeverUs);
  constexpr double kRoundingUs = 1e-3;  // of the sums above, far below what the clock tells apart
  return static_cast<std::int64_t>(std::ceil(free_us_ - kRoundingUs));
}

void Pace::woke(std::int64_t due_us, std::int64_t now_us) {
  late_us_ = static_cast<double>(std::max<std::int64_t>(0, now_us - due_us));
}

}  // namespace terrace::runtime
