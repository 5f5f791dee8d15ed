#include "spread.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace terrace::tools {
namespace {

double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  std::ranges::sort(values);
  return {quantile(values, 0.5), quantile(values, 0.05), quantile(values, 0.95)};
}

double median(std::vector<double> values) { return spread_of(std::move(values)).median; }

}  // namespace terrace::tools
