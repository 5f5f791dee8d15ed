#include "run_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "output_folder.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/drive_rates.h"
#include "terrace/io/file.h"
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

/// The same for a new store.
io::PageStoreOptions store_options(const PlacementSettings& settings, const plan::Plan& plan) {
  io::PageStoreOptions options = store_options(settings);
  options.extents_per_page = static_cast<int>(plan.copies(memory::Tier::disk));
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
  const std::vector<std::uint64_t> free = io::shares_of_free_bytes(paths);
  for (std::size_t drive = 0; drive < paths.size(); ++drive) {
    if (options.progress) options.progress({"measuring the drives", 0, 0});
    drives.push_back(
        io::measure_drive(paths[drive], std::min(kProbeBytes, free[drive] / 2), options.engine));
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
                           "but --disk allows {}, of which the store has {}: raise it, or keep "
                           "them in RAM (--offload_activations cpu)",
                           format_bytes(allowed), format_bytes(found.held_bytes))
                     : fmt::format(
                           "but --disk allows {}: raise it, or keep more of the state in RAM "
                           "(--offload_optimizer cpu)",
                           format_bytes(allowed));
  return limit;
}

void report_dead_runs(const PlacementSettings& settings, const io::RunId& run, Log& log) {
  for (const std::string& folder : settings.swap) {
    std::uint64_t bytes = 0;
    for (const io::RunRecord& record : io::list_run_folders(folder)) {
      if (record.liveness == io::RunLiveness::dead && record.id.run != run) bytes += record.bytes;
    }
    if (bytes == 0) continue;
    log.info(
        "dead runs have left {} in {}: 'terrace swap ls {}' names them, and 'terrace swap clean' "
        "with the folder of one removes that one",
        format_bytes(bytes), folder, folder);
  }
}

std::unique_ptr<RunStore> RunStore::create(const PlacementSettings& settings,
                                           const StoreOwner& owner, const plan::Plan& plan,
                                           std::uint64_t run_state_bytes_max, Log& log,
                                           const ProgressFunction& progress) {
  io::PageStoreOptions options = store_options(settings, plan);
  options.run_state_bytes_max = run_state_bytes_max;
  options.progress = progress;
  const std::vector<fs::path> bases = {settings.swap.begin(), settings.swap.end()};
  io::RunFolder folder = io::RunFolder::create(
      bases, {.owner = owner.words, .run = owner.run, .unlocked = owner.unlocked});
  options.id = folder.id();
  try {
    const auto folders = choose_use(folder.paths(), store_bytes(settings, plan), options, log);
    auto pages = io::PageStore::create(folders, page_specs(plan), options, log);
    pages->add_scratch(scratch_specs(plan));
    return std::unique_ptr<RunStore>(new RunStore(std::move(folder), std::move(pages)));
  } catch (...) {
    folder.remove();
    throw;
  }
}

std::unique_ptr<RunStore> RunStore::open(const PlacementSettings& settings,
                                         const io::RunRecord& record, const StoreOwner& owner,
                                         Log& log) {
  if (!io::PageStore::is_made(record.path)) return nullptr;
  io::RunFolder folder =
      io::RunFolder::adopt(record, {.owner = owner.words, .unlocked = owner.unlocked});
  const std::vector<fs::path> paths(folder.paths().begin(), folder.paths().end());
  auto pages = io::PageStore::open(paths, store_options(settings), log);
  return std::unique_ptr<RunStore>(new RunStore(std::move(folder), std::move(pages)));
}

std::optional<std::int64_t> RunStore::committed_step() const {
  const auto version = pages_->committed_version();
  return version ? std::optional(static_cast<std::int64_t>(version->value)) : std::nullopt;
}

std::uint64_t RunStore::parameter_bytes() const {
  const std::string start = fmt::format("{} of ", name_of(StateKind::parameter));
  std::uint64_t bytes = 0;
  for (const io::PageSpec& page : pages_->pages()) {
    if (page.description.starts_with(start)) bytes += page.bytes;
  }
  return bytes;
}

std::string RunStore::run_state() const {
  const std::vector<std::byte> bytes = pages_->run_state();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void RunStore::require_pages_of(const plan::Plan& plan,
                                std::span<const std::string> differences) const {
  const std::vector<io::PageSpec> specs = page_specs(plan);
  const bool same =
      static_cast<std::uint64_t>(pages_->extents_per_page()) == plan.copies(memory::Tier::disk) &&
      std::ranges::equal(specs, pages_->pages(), [](const io::PageSpec& a, const io::PageSpec& b) {
        return a.id == b.id && a.bytes == b.bytes && a.description == b.description;
      });
  const std::string reason =
      differences.empty()
          ? "for another placement, as memory that was left to the machine makes it, or by another "
            "version of Terrace"
          : fmt::format("with other settings, which it cannot follow: {}",
                        fmt::join(differences, ", "));
  require(same, ErrorKind::usage,
          "the store in {} (step {}) was made {}; resume with what it was made with, or name a "
          "checkpoint with --resume",
          place(), pages_->committed_version()->value, reason);
}

void RunStore::add_scratch(const plan::Plan& plan) { pages_->add_scratch(scratch_specs(plan)); }

void RunStore::remove() {
  pages_.reset();
  folder_.remove();
}

}  // namespace terrace::engine
