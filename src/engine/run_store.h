#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "terrace/core/log.h"
#include "terrace/engine/settings.h"
#include "terrace/io/page_store.h"
#include "terrace/io/run_folder.h"
#include "terrace/plan/plan.h"

namespace terrace::engine {

/// The page store of one run in its own folder on each swap path, under the run's lock. Owns both.
class RunStore {
 public:
  /// Reserves the space for the plan's pages and for run states of at most `run_state_bytes_max`.
  /// Errors: as `RunFolder::create`, `PageStore::create`.
  [[nodiscard]] static std::unique_ptr<RunStore> create(const PlacementSettings& settings,
                                                        const std::string& owner,
                                                        const plan::Plan& plan,
                                                        std::uint64_t run_state_bytes_max,
                                                        Log& log);
  /// Opens what a dead run of the same owner left, if it has a committed step; removes it if not.
  [[nodiscard]] static std::unique_ptr<RunStore> find(const PlacementSettings& settings,
                                                      const std::string& owner, Log& log);

  [[nodiscard]] io::PageStore& pages() { return *pages_; }
  /// The run state of the last commit, as text.
  [[nodiscard]] std::string run_state() const;
  [[nodiscard]] std::string place() const { return folder_.paths().front().string(); }
  /// Refuses a store that was made for another plan. Errors: usage, saying what to do.
  void require_pages_of(const plan::Plan& plan) const;
  /// Deletes the store: the run is finished, or its state is elsewhere.
  void remove();

 private:
  RunStore(io::RunFolder folder, std::unique_ptr<io::PageStore> pages)
      : folder_(std::move(folder)), pages_(std::move(pages)) {}

  io::RunFolder folder_;
  std::unique_ptr<io::PageStore> pages_;
};

/// The pages of a plan: an id is the index of its region.
[[nodiscard]] std::vector<io::PageSpec> page_specs(const plan::Plan& plan);

/// What names a run's folder on a swap path: the output folder of the rank.
[[nodiscard]] std::string store_owner(const std::filesystem::path& output);

}  // namespace terrace::engine
