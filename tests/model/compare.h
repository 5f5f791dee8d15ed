#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace terrace::model {

template <class A>
double norm_of(const std::vector<A>& values) {
  double sum = 0;
  for (const A value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

/// Euclidean length of a - b; NaN when one of them holds a NaN.
template <class A, class B>
double distance(const std::vector<A>& a, const std::vector<B>& b) {
  double sum = a.size() == b.size() ? 0 : std::nan("");
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

}  // namespace terrace::model
