#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/device/device.h"
#include "terrace/memory/region.h"

namespace terrace::runtime {

/// The slabs of a run: one of device memory and one of pinned host memory, exactly as large as the
/// plan says, allocated once. Owns them; regions are views. Immutable, hence thread-safe.
class RunMemory {
 public:
  /// Errors: out_of_memory, naming the slab.
  RunMemory(device::Device& device, const memory::MemoryPlan& plan);

  /// The address of a region of the device tier.
  [[nodiscard]] device::Pointer device(memory::RegionId region, std::uint64_t offset = 0) const;
  /// Bytes of a region of the host or the device tier, for streams of the device.
  [[nodiscard]] device::Span<std::byte> span(memory::RegionId region, std::uint64_t offset,
                                             std::uint64_t bytes) const;
  /// Bytes of a region of the host tier.
  [[nodiscard]] std::span<std::byte> host(memory::RegionId region, std::uint64_t offset,
                                          std::uint64_t bytes) const;
  [[nodiscard]] std::span<std::byte> host(memory::RegionId region) const;
  /// The whole host slab, for registration with the disks.
  [[nodiscard]] std::span<std::byte> host_slab() const { return host_.host(); }

 private:
  const memory::MemoryPlan& plan_;
  device::Buffer device_;
  device::Buffer host_;
};

}  // namespace terrace::runtime
