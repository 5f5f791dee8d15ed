#pragma once

#include <vector>

namespace terrace::tools {

/// What the repetitions of a measurement gave; zeros of none. Between two values it is linear.
struct Spread {
  double median = 0;
  double p5 = 0;
  double p95 = 0;
};

[[nodiscard]] Spread spread_of(std::vector<double> values);
[[nodiscard]] double median(std::vector<double> values);

}  // namespace terrace::tools
