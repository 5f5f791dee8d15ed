#include "terrace/runtime/run_memory.h"

#include "terrace/core/error.h"

namespace terrace::runtime {

using memory::Region;
using memory::Tier;

RunMemory::RunMemory(device::Device& device, const memory::MemoryPlan& plan)
    : plan_(plan),
      device_(device.allocate(plan.bytes(Tier::device), "the device tier")),
      host_(device.allocate_pinned(plan.bytes(Tier::host), "the host tier")) {}

device::Pointer RunMemory::device(memory::RegionId id, std::uint64_t offset) const {
  const Region& region = plan_.region(id);
  require(region.tier == Tier::device, ErrorKind::internal, "region \"{}\" is not on the device",
          region.purpose);
  return device_.pointer() + (region.offset + offset);
}

device::Span<std::byte> RunMemory::span(memory::RegionId id, std::uint64_t offset,
                                        std::uint64_t bytes) const {
  const Region& region = plan_.region(id);
  if (region.tier != Tier::device) return device::Span(host(id, offset, bytes));
  require(offset + bytes <= region.bytes, ErrorKind::internal, "a view leaves region \"{}\"",
          region.purpose);
  return {device(id, offset), bytes};
}

std::span<std::byte> RunMemory::host(memory::RegionId id, std::uint64_t offset,
                                     std::uint64_t bytes) const {
  const Region& region = plan_.region(id);
  require(offset + bytes <= region.bytes, ErrorKind::internal, "a view leaves region \"{}\"",
          region.purpose);
  require(region.tier == Tier::host, ErrorKind::internal,
          "region \"{}\" cannot be touched by the host", region.purpose);
  return host_.host().subspan(region.offset + offset, bytes);
}

std::span<std::byte> RunMemory::host(memory::RegionId id) const {
  return host(id, 0, plan_.region(id).bytes);
}

}  // namespace terrace::runtime
