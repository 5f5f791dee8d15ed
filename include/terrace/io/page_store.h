#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terrace/core/id.h"
#include "terrace/core/log.h"
#include "terrace/core/progress.h"
#include "terrace/io/engine.h"
#include "terrace/io/phases.h"
#include "terrace/io/run_id.h"
#include "terrace/io/turns.h"

namespace terrace::io {

class Manifest;
class PageChannel;
class PageTable;

/// Names a page; what it stands for is the caller's.
using PageId = Id<struct PageTag, std::uint64_t>;

/// A page to be made. `description` is kept with the store so that it explains itself: tensor name,
/// state kind, logical range.
struct PageSpec {
  PageId id;
  std::uint64_t bytes = 0;
  std::string description;
};

/// One folder of a store; `weight` is its share of every large page, in proportion to the others
/// (the drives' bandwidths, say).
struct StoreFolder {
  std::filesystem::path path;
  double weight = 1;
};

struct PageStoreOptions {
  /// Of a new store; a number for it is drawn where there is none.
  StoreId id;
  /// 2: a step writes beside the committed state, and a crash costs nothing. 1: half the space, but
  /// a crash between a page's first write and the commit loses the state of this store.
  int extents_per_page = 2;
  std::uint64_t run_state_bytes_max = std::uint64_t{64} << 10;
  /// Its `piece_bytes` is a multiple of `PageStore::kBlockBytes`.
  EngineOptions engine;
  /// Begin to make a step's writes durable each time a channel has written this much, so that the
  /// commit finds less to flush; 0 leaves it all to the commit.
  std::uint64_t flush_every_bytes = 0;
  /// Empty: `mixed` for a new store, and what it was made with for one that is opened. With `apart`
  /// each channel has a thread of its own, and one that waits for its turn blocks in its calls.
  std::optional<Phases> phases;
  /// Open beside a live run, only to look: what it writes meanwhile is not waited for.
  bool beside_live_run = false;
  /// Called while space is reserved, with the bytes of the file that it is for.
  ProgressFunction progress = {};
  /// Replaces `make_engine` (tests, and memory instead of disks).
  std::function<std::unique_ptr<Engine>(const EngineOptions&, Log&)> engine_factory;
};

struct ChannelOptions {
  /// Pages in flight at most.
  std::size_t pages_max = 256;
};

/// The pages of one rank on its disks, with the last committed step always intact.
///
/// A store is a file `pages` in each folder, with space reserved up front, and a file `manifest` in
/// the first. Each page has two extents (A and B). A write goes to the one that is not committed;
/// `commit` makes the data durable and then a manifest, of which there are two in turn, so that an
/// open after a kill or a power cut at any instant finds exactly the state of the last commit. A
/// page that was not written since keeps its extent. Every block of 256 KiB has a CRC-64, which the
/// manifest keeps and every read verifies.
///
/// Scratch pages beside them are of the process alone: one extent each in a file `scratch` in each
/// folder, in no manifest and no commit. They go with this object, and an open removes what a run
/// that was killed left of them. Their reads are verified too.
///
/// Large pages are cut over all folders in proportion to their weights; a page below 2 MiB lies on
/// one.
///
/// Threads: thread-safe; `commit` and the accesses of one page are ordered by the caller, and
/// `commit` and writing exclude each other. Each lane moves its pages through a channel of its own.
class PageStore {
 public:
  using Channel = PageChannel;

  /// The file of the first folder that says what the store is.
  static constexpr const char* kManifestName = "manifest";
  /// Bytes that one checksum covers.
  static constexpr std::uint64_t kBlockBytes = std::uint64_t{256} << 10;
  /// Buffers start at a multiple of this, and transfers are rounded up to one.
  static constexpr std::uint64_t kAlignment = 4096;

  /// Makes an empty store, with nothing committed, in folders that exist and hold no store. Page
  /// ids are distinct and sizes above 0. Errors: `does_not_fit`, naming the path and the bytes
  /// needed and free, before anything is written; `io`.
  [[nodiscard]] static std::unique_ptr<PageStore> create(std::span<const StoreFolder> folders,
                                                         std::span<const PageSpec> pages,
                                                         const PageStoreOptions& options, Log& log);
  /// Whether `create` has come as far as a manifest there, without which nothing was ever
  /// committed. The manifest takes its name when it is whole.
  [[nodiscard]] static bool is_made(const std::filesystem::path& first_folder);
  /// What the files in one folder of a store say of it.
  struct Head {
    StoreId id;
    std::vector<std::filesystem::path> folders;  ///< of the whole store; the manifest alone knows
    std::size_t place = 0;                       ///< of this folder among them
  };
  /// Reads no more than the head of a file, and needs no lock. None where no file says it.
  [[nodiscard]] static std::optional<Head> describe(const std::filesystem::path& folder);
  /// Opens the store whose manifest lies in the first folder, at its last commit. When one folder
  /// is given, the others are those that the store was made with. `extents_per_page` and
  /// `run_state_bytes_max` are the store's own. Waits until the writes of a run that was killed
  /// have come to rest. Errors: `io`, also when a live process has the store open; `corrupt`.
  [[nodiscard]] static std::unique_ptr<PageStore> open(
      std::span<const std::filesystem::path> folders, const PageStoreOptions& options, Log& log);
  ~PageStore();
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  /// Bytes that `create`, and `add_scratch`, would reserve on all folders together.
  [[nodiscard]] static std::uint64_t bytes_needed(std::span<const PageSpec> pages,
                                                  const PageStoreOptions& options);
  [[nodiscard]] static std::uint64_t scratch_bytes_needed(std::span<const PageSpec> pages);

  /// Makes scratch pages, with nothing written, and reserves their space, in the shares of the
  /// pages as far as each folder has room; once, while no channel is open. Ids are distinct from
  /// those of all pages. Errors: as `create`.
  void add_scratch(std::span<const PageSpec> pages);

  /// Those that a commit keeps, in the order of creation.
  [[nodiscard]] std::span<const PageSpec> pages() const;
  [[nodiscard]] bool contains(PageId id) const;
  [[nodiscard]] int extents_per_page() const;
  [[nodiscard]] Phases phases() const { return phases_; }

  /// Version of the last commit; none before the first, or when a store with one extent a page was
  /// being overwritten as its run died (`was_torn`).
  [[nodiscard]] std::optional<Version> committed_version() const;
  /// The commit that wrote the page's committed contents; none if it was never written.
  [[nodiscard]] std::optional<Version> committed_version(PageId id) const;
  [[nodiscard]] bool was_torn() const;
  /// What the last commit was given.
  [[nodiscard]] std::vector<std::byte> run_state() const;

  /// A way to the pages for one thread. The store outlives it.
  [[nodiscard]] std::unique_ptr<PageChannel> open_channel(const ChannelOptions& options = {});

  /// Makes everything written so far the state of `version`, durably: flushes the data, then
  /// writes and flushes the manifest with `run_state`. No write is in flight on any channel, and
  /// `version` is above the last one. Allocates nothing. Errors: `io`; the store then still opens
  /// at one of the two versions, never between. `usage` when the run state is too large.
  void commit(Version version, std::span<const std::byte> run_state);

  /// Drops everything written since the last commit: each page's current contents are its committed
  /// ones again, and none if it has none. Moves no data. Two extents a page; no write is in flight.
  /// Errors: `internal`.
  void discard();

  /// What the last commit spent, for metrics.
  struct CommitTimes {
    double flush_seconds = 0;
    double manifest_seconds = 0;
  };
  [[nodiscard]] CommitTimes last_commit() const;
  /// What the disks' engine found it can do.
  [[nodiscard]] Capabilities capabilities() const;

 private:
  friend class PageChannel;

  PageStore(std::vector<std::filesystem::path> folders, const PageStoreOptions& options, Log& log);

  [[nodiscard]] std::unique_ptr<Engine> new_engine(EngineOptions options) const;
  /// A short queue: enough for flushes, headers and the manifest.
  [[nodiscard]] std::unique_ptr<Engine> new_small_engine() const;
  /// Opens the data files in order, so that their ids are 0, 1, ...; then those of scratch.
  void open_data_files(Engine& engine) const;
  [[nodiscard]] std::filesystem::path data_path(std::size_t file) const;
  /// The table that has the page. Errors: `internal` when none has.
  [[nodiscard]] PageTable& table_of(PageId id) const;
  void create_data_files(const StoreId& id);
  void create_manifest(const StoreId& id);
  void check_data_files();
  /// Marks a store with one extent a page as being overwritten, before the first write after a
  /// commit.
  void mark_torn();

  PageStoreOptions options_;
  Phases phases_ = Phases::mixed;
  Turns turns_;  ///< of the channels, where they take turns
  Log& log_;
  std::vector<std::filesystem::path> folders_;
  std::vector<double> weights_;         ///< of the folders
  std::unique_ptr<PageTable> table_;    ///< of what a commit keeps
  std::unique_ptr<PageTable> scratch_;  ///< null: there is none
  std::atomic<int> channels_{0};        ///< that are open
  std::unique_ptr<Engine> engine_;      ///< for flushes and the manifest; under commit_mutex_
  std::unique_ptr<Manifest> manifest_;
  mutable std::mutex commit_mutex_;
  CommitTimes last_commit_;
};

}  // namespace terrace::io
