#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "terrace/io/page_store.h"

namespace terrace::io {

/// A part of a page on one file; its place in each extent.
struct Segment {
  int file = 0;
  std::uint64_t begin = 0;  ///< in the page
  std::uint64_t bytes = 0;  ///< a multiple of PageStore::kAlignment
  std::array<std::uint64_t, 2> offset{};
};

/// Where the pages lie, and which of their extents counts. The layout never changes; the state is
/// thread-safe. The checksums of a page belong to whoever accesses it.
class PageTable {
 public:
  /// Lays the pages out over files of these weights, `first_file` and those after it. Errors:
  /// `internal` for a double id or an empty page.
  PageTable(std::vector<PageSpec> specs, std::span<const double> weights, int extents,
            int first_file = 0);
  /// Restores a layout; `segments` in the order of pages.
  PageTable(std::vector<PageSpec> specs, std::vector<Segment> segments,
            std::vector<std::uint64_t> file_bytes, int extents);

  [[nodiscard]] const std::vector<PageSpec>& specs() const { return specs_; }
  [[nodiscard]] const std::vector<Segment>& segments() const { return segments_; }
  [[nodiscard]] std::span<const Segment> segments_of(std::size_t page) const;
  /// By file, from the first one.
  [[nodiscard]] const std::vector<std::uint64_t>& file_bytes() const { return file_bytes_; }
  [[nodiscard]] int extents() const { return extents_; }
  [[nodiscard]] std::uint64_t block_count() const { return checksums_[0].size(); }
  [[nodiscard]] std::optional<std::size_t> find(PageId id) const;
  /// As `find`. Errors: `internal` when there is no such page.
  [[nodiscard]] std::size_t index_of(PageId id) const;
  /// One checksum a block.
  [[nodiscard]] std::span<std::uint64_t> checksums(std::size_t page, int extent);

  /// The extent to read. Errors: `internal` when the page was never written or is being written.
  [[nodiscard]] int begin_read(std::size_t page) const;
  /// The extent to write. Errors: `internal` when the page is being written, or a commit is on.
  [[nodiscard]] int begin_write(std::size_t page);
  void end_write(std::size_t page);

  /// Bars writes until `end_commit`. Errors: `internal` when a page is being written.
  void begin_commit();
  /// With a version, the current contents become the committed ones.
  void end_commit(std::optional<Version> version);
  [[nodiscard]] bool has_uncommitted() const;
  /// The committed contents become the current ones. Errors: `internal` when a page is being
  /// written, or a commit is on.
  void discard();

  /// A page's record for the manifest, and back. An extent of -1 means that it was never written.
  struct Committed {
    int extent = -1;
    Version version;
  };
  /// What a commit of `version` would make the page's record; no writes are on.
  [[nodiscard]] Committed next(std::size_t page, Version version) const;
  [[nodiscard]] Committed committed(std::size_t page) const;
  void restore(std::size_t page, Committed committed);

 private:
  struct State {
    Committed committed;
    int current = -1;     ///< extent of the last complete write
    bool is_new = false;  ///< written since the last commit
    bool writing = false;
  };

  void index_pages();

  std::vector<PageSpec> specs_;
  std::vector<Segment> segments_;
  std::vector<std::size_t> first_segment_;  ///< by page, and the end
  std::vector<std::uint64_t> first_block_;  ///< by page, and the end
  std::vector<std::uint64_t> file_bytes_;
  std::unordered_map<PageId, std::size_t> index_;
  int extents_;
  std::array<std::vector<std::uint64_t>, 2> checksums_;

  mutable std::mutex mutex_;
  std::vector<State> states_;
  std::size_t writing_ = 0;
  bool committing_ = false;
};

/// Sizes of the data files that `specs` need over files of these weights, header included.
[[nodiscard]] std::vector<std::uint64_t> data_file_bytes(std::span<const PageSpec> specs,
                                                         std::span<const double> weights,
                                                         int extents);

}  // namespace terrace::io
