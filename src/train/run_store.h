#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terrace/config/settings.h"
#include "terrace/core/log.h"
#include "terrace/core/progress.h"
#include "terrace/io/page_store.h"
#include "terrace/io/run_folder.h"
#include "terrace/plan/plan.h"

namespace terrace::train {

/// Whose a store is to be.
struct StoreOwner {
  io::RunId run;
  std::string words;      ///< for people
  bool unlocked = false;  ///< go on where locks do not work
};

/// The page store of one run in its own folder on each swap path, under the run's lock. Owns both.
/// Destruction leaves the files.
class RunStore {
 public:
  /// Reserves the space for the plan's pages, its scratch and run states of at most
  /// `run_state_bytes_max`; `progress` is called between its parts.
  /// Errors: as `RunFolder::create`, `PageStore::create`.
  [[nodiscard]] static std::unique_ptr<RunStore> create(const config::PlacementSettings& settings,
                                                        const StoreOwner& owner,
                                                        const plan::Plan& plan,
                                                        std::uint64_t run_state_bytes_max, Log& log,
                                                        const ProgressFunction& progress = {});
  /// Takes over what a dead run left and deletes none of it; `record` is `RunFolder::find`'s. Null
  /// when that is no store: its making or its removal was cut short.
  /// Errors: as `RunFolder::adopt`, `PageStore::open`.
  [[nodiscard]] static std::unique_ptr<RunStore> open(const config::PlacementSettings& settings,
                                                      const io::RunRecord& record,
                                                      const StoreOwner& owner, Log& log);

  [[nodiscard]] io::PageStore& pages() { return *pages_; }
  /// The last committed step; none before the first commit, or when its state was torn.
  [[nodiscard]] std::optional<std::int64_t> committed_step() const;
  /// The run state of the last commit, as text.
  [[nodiscard]] std::string run_state() const;
  [[nodiscard]] std::string place() const { return folder_.paths().front().string(); }
  /// How much of the parameters is in it, beside the optimizer's state.
  [[nodiscard]] std::uint64_t parameter_bytes() const;
  /// Refuses a store that was made for another plan, naming `differences` between the settings of
  /// then and now. Errors: usage, saying what to do.
  void require_pages_of(const plan::Plan& plan, std::span<const std::string> differences) const;
  /// Reserves the space for the plan's scratch in a store that was opened, which has none. Errors:
  /// as `PageStore::add_scratch`.
  void add_scratch(const plan::Plan& plan);
  /// Deletes the store: the run is finished, or its state is elsewhere.
  void remove();

 private:
  RunStore(io::RunFolder folder, std::unique_ptr<io::PageStore> pages)
      : folder_(std::move(folder)), pages_(std::move(pages)) {}

  io::RunFolder folder_;
  std::unique_ptr<io::PageStore> pages_;
};

/// Says how much dead runs other than this one have left in `--swap`, and how to see what it is.
void report_dead_runs(const config::PlacementSettings& settings, const io::RunId& run, Log& log);

}  // namespace terrace::train
