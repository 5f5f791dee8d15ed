#include "run_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/drive_rates.h"
#include "terrace/io/free_space.h"

namespace terrace::engine {
namespace {

namespace fs = std::filesystem;

io::PageStoreOptions store_options(const PlacementSettings& settings) {
  io::PageStoreOptions options;
  options.phases = settings.disk_phases;
  options.engine.depth = static_cast<int>(settings.queue_depth);
  options.engine.piece_bytes = settings.block_bytes;
  return options;
}

/// Bytes on disk from which on it pays to measure the drives first, and bytes that this writes.
constexpr std::uint64_t kMeasuredBytesMin = kGiB;
constexpr std::uint64_t kProbeBytes = 256 * kMiB;

/// The folders of a new store of `bytes` with their weights; decides on the phases where the
/// settings leave that open. Where there is nothing to decide, or little to gain, nothing is
/// measured: then all drives weigh the same and reads and writes are mixed.
std::vector<io::StoreFolder> choose_use(std::span<const fs::path> paths, std::uint64_t bytes,
                                        io::PageStoreOptions& options, Log& log) {
  std::vector<io::StoreFolder> folders;
  for (const fs::path& path : paths) folders.push_back({path, 1});
  if (bytes < kMeasuredBytesMin || (folders.size() == 1 && options.phases)) return folders;
  std::vector<io::DriveRates> drives;
  std::vector<std::uint64_t> free;
  for (const fs::path& path : paths) {
    free.push_back(io::free_bytes(path));
    drives.push_back(
        io::measure_drive(path, std::min(kProbeBytes, free.back() / 2), options.engine));
  }
  if (!options.phases) {
    options.phases = io::better_apart(drives) ? io::Phases::apart : io::Phases::mixed;
  }
  const std::vector<double> weights = io::within_free_space(
      io::weights_of(drives, options.phases == io::Phases::apart), free, bytes);
  for (std::size_t drive = 0; drive < drives.size(); ++drive) {
    folders[drive].weight = weights[drive];
    log.info(
        "{}: reads {}, writes {}, both at once {}; reads and writes are {}, {:.0f} % of the "
        "state lie there",
        paths[drive].string(), format_rate(drives[drive].read), format_rate(drives[drive].write),
        format_rate(drives[drive].mixed), io::name_of(*options.phases), 100 * weights[drive]);
  }
  return folders;
}

std::vector<fs::path> bases_of(const PlacementSettings& settings) {
  return {settings.swap.begin(), settings.swap.end()};
}

}  // namespace

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

std::string store_owner(const fs::path& output) {
  return fmt::format("rank 0 of {}", fs::absolute(output).lexically_normal().string());
}

std::unique_ptr<RunStore> RunStore::create(const PlacementSettings& settings,
                                           const std::string& owner, const plan::Plan& plan,
                                           std::uint64_t run_state_bytes_max, Log& log) {
  const std::vector<io::PageSpec> specs = page_specs(plan);
  io::PageStoreOptions options = store_options(settings);
  options.extents_per_page = static_cast<int>(plan.copies(memory::Tier::disk));
  options.run_state_bytes_max = run_state_bytes_max;
  const std::uint64_t needed = io::PageStore::bytes_needed(specs, options);
  if (settings.disk) {
    // A share is of what is free on the first path.
    std::error_code ignored;
    const std::uint64_t allowed =
        settings.disk->of(fs::space(settings.swap.front(), ignored).available);
    require(needed <= allowed, ErrorKind::does_not_fit,
            "the state needs {} on disk, but --disk allows {}: raise it, or keep more of the state "
            "in RAM (--offload_optimizer cpu)",
            format_bytes(needed), format_bytes(allowed));
  }
  const std::vector<fs::path> bases = bases_of(settings);
  io::RunFolder folder = io::RunFolder::create(bases, {owner, false});
  try {
    const auto folders = choose_use(folder.paths(), needed, options, log);
    auto pages = io::PageStore::create(folders, specs, options, log);
    return std::unique_ptr<RunStore>(new RunStore(std::move(folder), std::move(pages)));
  } catch (...) {
    folder.remove();
    throw;
  }
}

std::unique_ptr<RunStore> RunStore::find(const PlacementSettings& settings,
                                         const std::string& owner, Log& log) {
  const std::vector<fs::path> bases = bases_of(settings);
  if (bases.empty()) return nullptr;
  const auto record = io::RunFolder::find(bases, owner);
  if (!record) return nullptr;
  io::RunFolder folder = io::RunFolder::adopt(*record, {owner, false});
  std::vector<fs::path> paths(folder.paths().begin(), folder.paths().end());
  std::unique_ptr<io::PageStore> pages;
  try {
    pages = io::PageStore::open(paths, store_options(settings), log);
  } catch (const Error& error) {
    log.warning("{}", error.what());
  }
  if (pages == nullptr || !pages->committed_version()) {
    log.info("the store that a dead run left in {} has no committed step; it is removed",
             paths.front().string());
    pages.reset();
    folder.remove();
    return nullptr;
  }
  return std::unique_ptr<RunStore>(new RunStore(std::move(folder), std::move(pages)));
}

std::string RunStore::run_state() const {
  const std::vector<std::byte> bytes = pages_->run_state();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void RunStore::require_pages_of(const plan::Plan& plan) const {
  const std::vector<io::PageSpec> specs = page_specs(plan);
  const bool same =
      static_cast<std::uint64_t>(pages_->extents_per_page()) == plan.copies(memory::Tier::disk) &&
      std::ranges::equal(specs, pages_->pages(), [](const io::PageSpec& a, const io::PageSpec& b) {
        return a.id == b.id && a.bytes == b.bytes && a.description == b.description;
      });
  require(same, ErrorKind::usage,
          "the store in {} (step {}) was laid out for other settings of placement or chunk size: "
          "resume with the settings it was made with, or name a checkpoint with --resume",
          place(), pages_->committed_version()->value);
}

void RunStore::remove() {
  pages_.reset();
  folder_.remove();
}

}  // namespace terrace::engine
