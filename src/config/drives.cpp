#include "terrace/config/drives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "terrace/core/units.h"
#include "terrace/io/file.h"
#include "terrace/io/free_space.h"

namespace terrace::config {

io::PageStoreOptions store_options(const PlacementSettings& settings) {
  io::PageStoreOptions options;
  options.phases = settings.disk_phases;
  options.engine.depth = static_cast<int>(settings.queue_depth);
  options.engine.piece_bytes = settings.block_bytes;
  return options;
}

io::PageStoreOptions store_options(const PlacementSettings& settings, const plan::Plan& plan) {
  io::PageStoreOptions options = store_options(settings);
  options.extents_per_page = static_cast<int>(plan.copies(memory::Tier::disk));
  return options;
}

std::vector<io::PageSpec> page_specs(const plan::Plan& plan) {
  std::vector<io::PageSpec> specs;
  auto add = [&](const plan::Place& place, const plan::Chunk& chunk, StateKind kind) {
    const memory::Region& region = plan.memory.region(place.region);
    if (region.tier != memory::Tier::disk) return;
    specs.push_back({io::PageId(static_cast<std::uint64_t>(place.region.value)), region.bytes,
                     fmt::format("{} of flat {}, elements {} to {}", name_of(kind), chunk.flat,
                                 chunk.range.first, chunk.range.end())});
  };
  for (std::size_t chunk = 0; chunk < plan.chunks.size(); ++chunk) {
    for (std::size_t kind = 0; kind < plan.request.state.size(); ++kind) {
      add(plan.state[chunk][kind], plan.chunks[chunk], plan.request.state[kind].kind);
    }
    add(plan.parameter[chunk], plan.chunks[chunk], StateKind::parameter);
  }
  return specs;
}

std::vector<io::PageSpec> scratch_specs(const plan::Plan& plan) {
  std::vector<io::PageSpec> specs;
  const auto regions = plan.memory.regions();
  for (std::size_t index = 0; index < regions.size(); ++index) {
    const memory::Region& region = regions[index];
    if (region.tier != memory::Tier::disk || region.persistent()) continue;
    specs.push_back({io::PageId(index), region.bytes, region.purpose});
  }
  return specs;
}

std::uint64_t store_bytes(const PlacementSettings& settings, const plan::Plan& plan) {
  if (!plan.uses_disk()) return 0;
  return io::PageStore::bytes_needed(page_specs(plan), store_options(settings, plan)) +
         scratch_bytes(plan);
}

std::uint64_t scratch_bytes(const plan::Plan& plan) {
  return io::PageStore::scratch_bytes_needed(scratch_specs(plan));
}

DiskLimit disk_limit(const PlacementSettings& settings, const OnDrives& found) {
  DiskLimit limit;
  // A store that is there stays where it is; what it is still given holds inputs of blocks.
  const bool is_there = found.held_bytes > 0;
  const std::vector<std::filesystem::path> folders(settings.swap.begin(), settings.swap.end());
  // The drives of another machine are not known.
  const bool here = !folders.empty() && std::ranges::all_of(folders, [](const auto& folder) {
    return io::is_folder(folder);
  });
  if (!here && settings.disk && settings.disk->percent > 0) return limit;
  std::uint64_t free = 0;
  if (here) {
    free = io::free_bytes(folders) + found.freed_bytes;
    limit.bytes = free;
    limit.advice = fmt::format(
        "but {} are free in {}{}: free some space ('terrace swap ls' shows what dead runs have "
        "left), or {}",
        format_bytes(limit.bytes), fmt::join(settings.swap, ","),
        io::share_a_file_system(folders) ? " (a file system with several of them counts once)" : "",
        is_there ? "keep them in RAM (--offload_activations cpu)" : "name another folder");
  }
  if (!settings.disk) return limit;
  const std::uint64_t allowed = settings.disk->of(free + found.held_bytes);
  const std::uint64_t left = allowed - std::min(allowed, found.held_bytes);
  if (left >= limit.bytes) return limit;
  limit.bytes = left;
  limit.advice = is_there
                     ? fmt::format(
                           "but --disk allows {} and the store has {} of it: raise it, or keep "
                           "them in RAM (--offload_activations cpu)",
                           format_bytes(allowed), format_bytes(found.held_bytes))
                     : fmt::format(
                           "but --disk allows {}: raise it, or keep more of the state in RAM "
                           "(--offload_optimizer cpu)",
                           format_bytes(allowed));
  return limit;
}

}  // namespace terrace::config
