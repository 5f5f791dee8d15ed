#include "terrace/kernels/cpu_target.h"

#include <hwy/highway.h>

namespace terrace::kernels {

CpuTarget::CpuTarget() {
  // Without `all`: kernels that are called without a target must not allocate.
  const std::int64_t bits = hwy::SupportedTargets() & HWY_TARGETS;
  bit_ = bits == 0 ? HWY_STATIC_TARGET : bits & -bits;
}

std::vector<CpuTarget> CpuTarget::all() {
  std::vector<CpuTarget> targets;
  // Lower bits are better targets.
  for (const std::int64_t bit : hwy::SupportedAndGeneratedTargets()) {
    targets.push_back(CpuTarget(bit));
  }
  if (targets.empty()) targets.push_back(CpuTarget(HWY_STATIC_TARGET));
  return targets;
}

std::string_view CpuTarget::name() const { return hwy::TargetName(bit_); }

std::size_t CpuTarget::table_index() const {
  if constexpr ((HWY_TARGETS & (HWY_TARGETS - 1)) == 0) return 0;  // a table of one entry
  // The table's order is Highway's own; a local chooser keeps its process-wide one out of it.
  hwy::ChosenTarget chooser;
  chooser.Update(bit_);
  return chooser.GetIndex();
}

}  // namespace terrace::kernels
