#include "resume_point.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/checkpoint/metrics_file.h"
#include "terrace/checkpoint/model_folder.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/entry.h"
#include "terrace/io/file.h"

namespace terrace::train {
namespace {

namespace fs = std::filesystem;

/// Whether the run folder lies below one of the folders of `--swap`.
bool is_in_swap(const config::PlacementSettings& settings, const fs::path& run_folder) {
  return std::ranges::any_of(settings.swap, [&](const std::string& base) {
    return io::is_same_folder(base, run_folder.parent_path());
  });
}

/// The places where a run of this output may have left a store.
std::vector<fs::path> places_of_stores(const config::PlacementSettings& settings,
                                       const OutputFolder& output) {
  std::vector<fs::path> bases;
  auto add = [&](const fs::path& base) {
    const bool known = std::ranges::any_of(
        bases, [&](const fs::path& other) { return io::is_same_folder(other, base); });
    // A drive of the last run may have failed, which stops no other. What is only closed to this
    // user may hold committed steps.
    std::error_code failed;
    const bool is_folder = fs::is_directory(base, failed);
    if (failed == std::errc::permission_denied) (void)io::look_at(base);
    if (!known && is_folder) bases.push_back(base);
  };
  for (const std::string& base : settings.swap) add(base);
  for (const fs::path& base : output.last_run().swap) add(base);
  return bases;
}

/// A store of this output's id, opened under its lock.
struct OpenStore {
  io::RunRecord record;
  std::unique_ptr<RunStore> store;
  checkpoint::TrainerState state;  ///< of the commit, if there is one
};

/// Everything that bears this output's id on the drives.
struct Found {
  std::vector<OpenStore> open;
  std::vector<io::RunRecord> leftovers;  ///< of stores whose making or removal was cut short
  std::vector<Error> unusable;           ///< why, a sentence each
  std::vector<std::string> others;       ///< whose they are, a sentence each

  /// The one of the highest committed step; null where nothing is committed.
  [[nodiscard]] OpenStore* newest() {
    OpenStore* newest = nullptr;
    for (OpenStore& one : open) {
      const auto step = one.store->committed_step();
      if (step && (newest == nullptr || *step > *newest->store->committed_step())) newest = &one;
    }
    return newest;
  }
};

/// Whose a store of this id is, where it is not this output folder's; else empty.
std::string other_owner(const io::RunRecord& record, const OutputFolder& output) {
  const fs::path named = OutputFolder::output_of(record.owner);
  if (record.liveness == io::RunLiveness::live) {
    return fmt::format("the store in {} is in use by {}{}", record.path.string(), record.holder(),
                       named.empty() ? "" : ", for the output " + named.string());
  }
  if (named.empty() || io::is_same_folder(named, output.path()) || !io::is_there(named)) return "";
  if (OutputFolder::id_in(named) != output.run_id()) return "";
  return fmt::format("the store in {} is that of {}; {} is a copy of it", record.path.string(),
                     named.string(), output.path().string());
}

/// Opens one store. Errors: all that can be wrong with it.
OpenStore open_store(const config::PlacementSettings& settings, const OutputFolder& output,
                     const io::RunRecord& record, Log& log) {
  OpenStore one{
      record, RunStore::open(settings, record, output.store_owner(output.run_id()), log), {}};
  if (one.store && one.store->committed_step()) {
    one.state = checkpoint::parse_trainer_state(one.store->run_state(), one.store->place());
  }
  return one;
}

/// The stores that a version without run ids has left below `base` for this output, by its path.
std::vector<std::string> stores_without_id(const fs::path& base, const OutputFolder& output) {
  std::vector<std::string> found;
  for (const io::RunRecord& record : io::list_run_folders(base)) {
    const fs::path named = OutputFolder::output_of(record.owner);
    if (record.id.run || named.empty() || !io::is_same_folder(named, output.path())) continue;
    found.push_back(
        fmt::format("the store in {} was made by an earlier version of Terrace, which alone can go "
                    "on from it",
                    record.path.string()));
  }
  return found;
}

/// Looks for what bears this output's id, and opens it unless it is to be overwritten anyway.
Found find_stores(const config::Settings& settings, const OutputFolder& output, Log& log) {
  Found found;
  for (const fs::path& base : places_of_stores(settings.placement, output)) {
    std::vector<io::RunRecord> records;
    try {
      records = io::RunFolder::find({&base, 1}, output.run_id());
      std::ranges::move(stores_without_id(base, output), std::back_inserter(found.others));
    } catch (const std::exception& error) {  // Also of the file system: the drive has failed.
      found.unusable.emplace_back(
          ErrorKind::io, fmt::format("{} cannot be looked at: {}", base.string(), error.what()),
          __FILE__, __LINE__);
    }
    for (const io::RunRecord& record : records) {
      if (std::string other = other_owner(record, output); !other.empty()) {
        found.others.push_back(std::move(other));
        continue;
      }
      try {
        const bool may_live =
            record.liveness == io::RunLiveness::unknown && !settings.output.no_lock;
        const bool overwrites = settings.output.overwrite && !may_live;
        OpenStore one{record, nullptr, {}};
        if (!overwrites) one = open_store(settings.placement, output, record, log);
        if (one.store) {
          found.open.push_back(std::move(one));
        } else {
          found.leftovers.push_back(record);
        }
      } catch (const Error& error) {
        found.unusable.emplace_back(
            error.kind(),
            fmt::format("the store in {} cannot be used: {}", record.path.string(), error.what()),
            error.file(), error.line());
      }
    }
  }
  return found;
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

/// Why no store can be gone on with, as the end of a sentence.
std::string why_lost(const Found& found) {
  if (!found.unusable.empty()) return fmt::format("but {}", found.unusable.front().what());
  if (!found.others.empty()) return fmt::format("but {}", fmt::join(found.others, "; "));
  return found.leftovers.empty()
             ? "where there is none of it"
             : "where there is a part of one alone, whose removal or making was cut short";
}

/// A store that cannot be gone on with, or is gone with its drive, is not taken for none: what it
/// held is gone on with from `newest`, and that is said, or not at all.
void require_no_lost_store(const OutputFolder& output,
                           const std::optional<checkpoint::CheckpointEntry>& newest,
                           const Found& found, Log& log) {
  const OutputFolder::LastRun last = output.last_run();
  if (!last.commits_every_step || last.finished) return;
  const std::int64_t step = checkpoint::last_logged_step(output.path() / "metrics.jsonl");
  if (step <= (newest ? newest->step : 0)) return;
  std::vector<std::string> places;
  for (const fs::path& base : last.swap) places.push_back(base.string());
  const std::string lost =
      fmt::format("the run in {} reached step {} and committed it to a store in {}, {}",
                  output.path().string(), step, fmt::join(places, ", "), why_lost(found));
  const bool may_come_back = found.leftovers.empty() && found.others.empty();
  if (!newest) {
    fail(found.unusable.empty() ? ErrorKind::usage : found.unusable.front().kind(),
         "{}, and there is no checkpoint: {}; what is there is kept", lost,
         may_come_back
             ? "mount or mend the drive that it is on and give --resume auto again, or begin "
               "anew in another --output"
             : "begin anew in another --output");
  }
  log.warning("{}: going on from step {} of {}{}", lost, newest->step, newest->folder.string(),
              may_come_back ? "; if a drive is not mounted, stop this run, and give --resume auto "
                              "when it is"
                            : "");
}

void require_nothing_later(const ResumePoint& point, const OutputFolder& output,
                           const std::optional<checkpoint::CheckpointEntry>& newest,
                           const OpenStore* committed) {
  const std::int64_t begin = point.state.global_step;
  if (committed != nullptr && *committed->store->committed_step() > begin) {
    const std::int64_t step = *committed->store->committed_step();
    fail(ErrorKind::usage,
         "the store in {} holds step {} of a run of {}, and this run would begin at step {} and "
         "remove it: give --resume auto to go on from it, or another --output; 'terrace swap clean "
         "{}' removes that store alone, with step {}",
         committed->record.path.string(), step, output.path().string(), begin,
         committed->record.path.string(), step);
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
void take_store(ResumePoint& point, OpenStore& committed,
                const std::optional<checkpoint::CheckpointEntry>& newest, Log& log) {
  point.store = std::move(committed.store);
  point.state = std::move(committed.state);
  if (!newest) return;
  point.last_saved = newest->step;
  try {
    point.state.log_history = checkpoint::TrainingCheckpoint(newest->folder).trainer().log_history;
  } catch (const Error& error) {
    log.warning("what was logged until step {} is lost to trainer_state.json: {}", newest->step,
                error.what());
  }
}

/// Names what stays on the drives although it bears this output's id.
void say_what_stays(const Found& found, Log& log) {
  for (const Error& fault : found.unusable) log.warning("{}; it stays as it is", fault.what());
  for (const std::string& other : found.others) {
    log.warning("{}; it stays as it is, and this is another run from here on", other);
  }
}

}  // namespace

std::string ResumePoint::place() const {
  return store ? store->place() : checkpoint ? checkpoint->folder().string() : "the model";
}

std::uint64_t ResumePoint::freed_bytes(const config::PlacementSettings& settings) const {
  // Less than when it was found: what no commit kept went as it was opened.
  std::uint64_t bytes = 0;
  for (const io::RunRecord& record : replaced) {
    if (is_in_swap(settings, record.path)) bytes += io::bytes_of(record);
  }
  return bytes;
}

void ResumePoint::remove_replaced(Log& log) {
  for (const io::RunRecord& record : replaced) {
    const io::Removal removal = io::remove_run_folder(record);
    log.info("removed the store in {} ({}) that a dead run of this output had left",
             record.path.string(), format_bytes(removal.bytes));
    for (const std::string& kept : removal.kept) log.warning("{}; it stays as it is", kept);
  }
  replaced.clear();
}

ResumePoint find_resume_point(const config::Settings& settings, const OutputFolder& output,
                              Log& log) {
  ResumePoint point;
  const std::string& resume = settings.output.resume;
  Found found = find_stores(settings, output, log);
  point.run = found.others.empty() ? output.run_id() : io::RunId::draw();
  point.replaced = found.leftovers;
  if (settings.output.overwrite) {
    say_what_stays(found, log);
    return point;
  }
  const auto newest = checkpoint::newest_checkpoint(output.path());
  OpenStore* const committed = found.newest();
  const bool takes_store = resume == "auto" && committed != nullptr &&
                           (!newest || newest->step <= *committed->store->committed_step());
  for (const OpenStore& one : found.open) {
    if (!takes_store || &one != committed) point.replaced.push_back(one.record);
  }
  if (takes_store) {
    require(is_in_swap(settings.placement, committed->record.path), ErrorKind::usage,
            "the run in {} has committed step {} in {}: add --swap {} to go on from it",
            output.path().string(), committed->state.global_step, committed->store->place(),
            committed->record.path.parent_path().string());
    take_store(point, *committed, newest, log);
    say_what_stays(found, log);
    return point;
  }
  if (resume == "auto" && committed == nullptr) require_no_lost_store(output, newest, found, log);
  say_what_stays(found, log);
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

}  // namespace terrace::train
