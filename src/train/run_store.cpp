#include "run_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "output_folder.h"
#include "terrace/config/drives.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/drive_rates.h"
#include "terrace/io/file.h"
#include "terrace/io/free_space.h"

namespace terrace::train {
namespace {

namespace fs = std::filesystem;

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

void report_dead_runs(const config::PlacementSettings& settings, const io::RunId& run, Log& log) {
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

std::unique_ptr<RunStore> RunStore::create(const config::PlacementSettings& settings,
                                           const StoreOwner& owner, const plan::Plan& plan,
                                           std::uint64_t run_state_bytes_max, Log& log,
                                           const ProgressFunction& progress) {
  io::PageStoreOptions options = config::store_options(settings, plan);
  options.run_state_bytes_max = run_state_bytes_max;
  options.progress = progress;
  const std::vector<fs::path> bases = {settings.swap.begin(), settings.swap.end()};
  io::RunFolder folder = io::RunFolder::create(
      bases, {.owner = owner.words, .run = owner.run, .unlocked = owner.unlocked});
  options.id = folder.id();
  try {
    const auto folders =
        choose_use(folder.paths(), config::store_bytes(settings, plan), options, log);
    auto pages = io::PageStore::create(folders, config::page_specs(plan), options, log);
    pages->add_scratch(config::scratch_specs(plan));
    return std::unique_ptr<RunStore>(new RunStore(std::move(folder), std::move(pages)));
  } catch (...) {
    folder.remove();
    throw;
  }
}

std::unique_ptr<RunStore> RunStore::open(const config::PlacementSettings& settings,
                                         const io::RunRecord& record, const StoreOwner& owner,
                                         Log& log) {
  if (!io::PageStore::is_made(record.path)) return nullptr;
  io::RunFolder folder =
      io::RunFolder::adopt(record, {.owner = owner.words, .unlocked = owner.unlocked});
  const std::vector<fs::path> paths(folder.paths().begin(), folder.paths().end());
  auto pages = io::PageStore::open(paths, config::store_options(settings), log);
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
  const std::vector<io::PageSpec> specs = config::page_specs(plan);
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

void RunStore::add_scratch(const plan::Plan& plan) {
  pages_->add_scratch(config::scratch_specs(plan));
}

void RunStore::remove() {
  pages_.reset();
  folder_.remove();
}

}  // namespace terrace::train
