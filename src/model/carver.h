#pragma once

#include <algorithm>
#include <cstdint>

#include "terrace/core/dtype.h"
#include "terrace/core/units.h"
#include "terrace/device/memory.h"
#include "terrace/kernels/op_args.h"

namespace terrace::model {

/// Every buffer starts at a multiple of a cache line, which is also the widest vector.
inline constexpr std::uint64_t kAlignment = 64;

/// An address for working out how much memory a call needs: not null, because a null operand is one
/// left out, and never touched, because nothing is enqueued then.
[[nodiscard]] inline device::Pointer nowhere() {
  return device::Pointer(reinterpret_cast<void*>(kAlignment));
}

/// Lays buffers one behind the other in memory that is the caller's, and keeps the most that was
/// ever taken. The same code, run on `nowhere()`, so tells how much it will need.
class Carver {
 public:
  explicit Carver(device::Pointer base) : base_(base) {}

  [[nodiscard]] device::Pointer bytes(std::uint64_t count) {
    const std::uint64_t first = used_;
    used_ = round_up(first + count, kAlignment);
    peak_ = std::max(peak_, used_);
    return base_ + first;
  }
  [[nodiscard]] kernels::View view(DType dtype, std::int64_t elements) {
    return {bytes(static_cast<std::uint64_t>(elements) * size_of(dtype)), dtype};
  }

  /// How much is taken now; `rewind` gives back what was taken since.
  [[nodiscard]] std::uint64_t used() const { return used_; }
  void rewind(std::uint64_t used) { used_ = used; }
  [[nodiscard]] std::uint64_t peak() const { return peak_; }

 private:
  device::Pointer base_;
  std::uint64_t used_ = 0;
  std::uint64_t peak_ = 0;
};

}  // namespace terrace::model
