#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace terrace::kernels {

/// One of the instruction sets that the vector kernels are compiled for ("AVX3", "NEON", ...:
/// Highway's names). Every kernel gives the same bits on all of them; naming one is for tests and
/// measurements.
class CpuTarget {
 public:
  /// The best one that this CPU has: the first of `all`. Allocates nothing. Thread-safe.
  CpuTarget();

  /// Every compiled target that this CPU can run, best first.
  [[nodiscard]] static std::vector<CpuTarget> all();

  [[nodiscard]] std::string_view name() const;
  /// Position in a Highway dispatch table (`HWY_DISPATCH_TABLE`) of any kernel.
  [[nodiscard]] std::size_t table_index() const;

  friend bool operator==(CpuTarget, CpuTarget) = default;

 private:
  explicit CpuTarget(std::int64_t bit) : bit_(bit) {}
  std::int64_t bit_ = 0;  // Highway's HWY_... constant
};

}  // namespace terrace::kernels
