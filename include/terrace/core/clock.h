#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace terrace {

/// Microseconds on the monotonic clock since an arbitrary start; the only clock that spans and
/// metrics read.
[[nodiscard]] std::int64_t now_us();

/// Seconds since `start_us`, a value of `now_us`.
[[nodiscard]] inline double seconds_since(std::int64_t start_us) {
  return static_cast<double>(now_us() - start_us) * 1e-6;
}

/// Sleeps; the only place that does (pacing, back-off).
void sleep_us(std::int64_t duration_us);

/// The wall clock as "2026-01-31T12:00:00Z", for records that people read.
[[nodiscard]] std::string utc_now();

}  // namespace terrace
