#include "resume_point.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/checkpoint/metrics_file.h"
#include "terrace/checkpoint/model_folder.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::engine {
namespace {

namespace fs = std::filesystem;

/// Whether the run folder lies below one of the folders of `--swap`.
bool is_in_swap(const PlacementSettings& settings, const fs::path& run_folder) {
  return std::ranges::any_of(settings.swap, [&](const std::string& base) {
    return io::is_same_folder(base, run_folder.parent_path());
  });
}

/// What a dead run of this output has left, wherever it may be.
std::optional<io::RunRecord> find_dead_store(const PlacementSettings& settings,
                                             const OutputFolder& output) {
  std::vector<fs::path> bases;
  auto add = [&](const fs::path& base) {
    const bool known = std::ranges::any_of(
        bases, [&](const fs::path& other) { return io::is_same_folder(other, base); });
    std::error_code ignored;  // A drive of the last run may have failed, which stops no other.
    if (!known && fs::is_directory(base, ignored)) bases.push_back(base);
  };
  for (const std::string& base : settings.swap) add(base);
  for (const fs::path& base : output.last_run().swap) add(base);
  return io::RunFolder::find(bases, store_owner(output.path()));
}

void say_what_is_passed_over(const OutputFolder& output, const checkpoint::CheckpointEntry& newest,
                             Log& log) {
  const checkpoint::CheckpointList list = checkpoint::list_checkpoints(output.path());
  if (list.broken.empty() || list.broken.front().step < newest.step) return;
  log.warning("going on from {}, as the later one cannot be used: {}", newest.folder.string(),
              list.broken.front().fault);
}

void say_that_nothing_was_found(const OutputFolder& output, Log& log) {
  const checkpoint::CheckpointList list = checkpoint::list_checkpoints(output.path());
  if (!list.broken.empty()) {
    log.warning("{} of {} cannot be used, the newest because {}",
                counted(list.broken.size(), "checkpoint"), output.path().string(),
                list.broken.front().fault);
  }
  log.info("--resume auto found nothing in {} to go on with; starting afresh",
           output.path().string());
}

/// A store that is gone, with its drive or but for `remains`, is not taken for none: what it held
/// is gone on with from `newest`, and that is said, or not at all.
void require_no_lost_store(const OutputFolder& output,
                           const std::optional<checkpoint::CheckpointEntry>& newest,
                           const std::optional<io::RunRecord>& remains, Log& log) {
  const OutputFolder::LastRun last = output.last_run();
  if (!last.commits_every_step || last.finished) return;
  const std::int64_t step = checkpoint::last_logged_step(output.path() / "metrics.jsonl");
  if (step <= (newest ? newest->step : 0)) return;
  std::vector<std::string> places;
  for (const fs::path& base : last.swap) places.push_back(base.string());
  const std::string lost = fmt::format(
      "the run in {} reached step {} and committed it to a store in {}, where there is {}",
      output.path().string(), step, fmt::join(places, ", "),
      remains ? "a part of one alone, whose removal or making was cut short" : "none of it");
  require(newest.has_value(), ErrorKind::usage, "{}: {}begin anew with --overwrite_output_dir",
          lost, remains ? "" : "mount the drive that it is on, or ");
  log.warning("{}: going on from step {} of {}{}", lost, newest->step, newest->folder.string(),
              remains ? "" : "; if a drive is not mounted, stop this run");
}

void require_nothing_later(const ResumePoint& point, const OutputFolder& output,
                           const std::optional<checkpoint::CheckpointEntry>& newest,
                           std::optional<std::int64_t> committed) {
  const std::int64_t begin = point.state.global_step;
  if (committed && *committed > begin) {
    fail(ErrorKind::usage,
         "the store in {} holds step {} of a run of {}, and this run would begin at step {} and "
         "remove it: give --resume auto to go on from it, another --output, or remove it first "
         "('terrace swap clean {}')",
         point.replaced->path.string(), *committed, output.path().string(), begin,
         point.replaced->path.parent_path().string());
  }
  if (newest && newest->step > begin) {
    fail(ErrorKind::usage,
         "{} is later than step {} of {}, and would be removed as the run saves its own: give "
         "--resume auto to go on from the newest, another --output, or move the later checkpoints "
         "elsewhere",
         newest->folder.string(), begin, point.place());
  }
}

void take_checkpoint(ResumePoint& point, const fs::path& folder) {
  point.checkpoint = std::make_unique<checkpoint::TrainingCheckpoint>(folder);
  point.state = point.checkpoint->trainer();
  point.last_saved = point.state.global_step;
}

/// A store keeps no history: that is the newest checkpoint's.
void take_store(ResumePoint& point, std::unique_ptr<RunStore> store,
                const std::optional<checkpoint::CheckpointEntry>& newest, Log& log) {
  point.store = std::move(store);
  point.state = checkpoint::parse_trainer_state(point.store->run_state(), point.store->place());
  if (!newest) return;
  point.last_saved = newest->step;
  try {
    point.state.log_history = checkpoint::TrainingCheckpoint(newest->folder).trainer().log_history;
  } catch (const Error& error) {
    log.warning("what was logged until step {} is lost to trainer_state.json: {}", newest->step,
                error.what());
  }
}

}  // namespace

std::string ResumePoint::place() const {
  return store ? store->place() : checkpoint ? checkpoint->folder().string() : "the model";
}

std::uint64_t ResumePoint::freed_bytes(const PlacementSettings& settings) const {
  // Less than when it was found: what no commit kept went as it was opened.
  return replaced && is_in_swap(settings, replaced->path) ? io::bytes_of(*replaced) : 0;
}

void ResumePoint::remove_replaced(Log& log) {
  if (!replaced) return;
  const std::uint64_t bytes = io::remove_run_folder(*replaced, true);
  log.info("removed the store in {} ({}) that a dead run of this output had left",
           replaced->path.string(), format_bytes(bytes));
  replaced.reset();
}

ResumePoint find_resume_point(const Settings& settings, const OutputFolder& output, Log& log) {
  ResumePoint point;
  const std::string& resume = settings.output.resume;
  point.replaced = find_dead_store(settings.placement, output);
  if (settings.output.overwrite) return point;
  const auto newest = checkpoint::newest_checkpoint(output.path());
  std::unique_ptr<RunStore> store;
  if (point.replaced) store = RunStore::open(settings.placement, *point.replaced, log);
  const auto committed = store ? store->committed_step() : std::nullopt;
  if (resume == "auto" && committed && (!newest || newest->step <= *committed)) {
    require(is_in_swap(settings.placement, point.replaced->path), ErrorKind::usage,
            "the run in {} has committed step {} in {}: add --swap {} to go on from it",
            output.path().string(), *committed, store->place(),
            point.replaced->path.parent_path().string());
    take_store(point, std::move(store), newest, log);
    point.replaced.reset();
    return point;
  }
  if (resume == "auto" && !store) require_no_lost_store(output, newest, point.replaced, log);
  if (resume == "auto" && newest) {
    say_what_is_passed_over(output, *newest, log);
    take_checkpoint(point, newest->folder);
  } else if (resume == "auto") {
    say_that_nothing_was_found(output, log);
  } else if (!resume.empty()) {
    take_checkpoint(point, checkpoint::resolve_checkpoint(resume));
  }
  require_nothing_later(point, output, newest, committed);
  return point;
}

}  // namespace terrace::engine
