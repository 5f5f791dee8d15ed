#include "page_table.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::io {
namespace {

/// A page below this lies on one file: cutting it would make transfers too short to be fast.
constexpr std::uint64_t kCutBytesMin = 2 * kMiB;
/// The first bytes of a data file say which store it is of.
constexpr std::uint64_t kHeaderBytes = PageStore::kAlignment;

/// Fills files in proportion to their weights. Segments of one extent are laid out in the order of
/// pages, so that a step moves through each file from front to back.
class Layout {
 public:
  explicit Layout(std::span<const double> weights, int first_file = 0)
      : weights_(weights.begin(), weights.end()), used_(weights.size()), first_file_(first_file) {
    const double sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
    for (double& weight : weights_) weight /= sum;
  }

  void place(std::uint64_t page_bytes) {
    const std::uint64_t bytes = round_up(page_bytes, PageStore::kAlignment);
    if (weights_.size() == 1 || bytes < kCutBytesMin) {
      add(least_used(), 0, bytes);
      return;
    }
    double share = 0;
    std::uint64_t begin = 0;
    for (std::size_t file = 0; file < weights_.size(); ++file) {
      share += weights_[file];
      // Whole blocks, so that no checksum spans two files; the last file takes the rest.
      const auto blocks = static_cast<std::uint64_t>(std::llround(
          share * static_cast<double>(bytes) / static_cast<double>(PageStore::kBlockBytes)));
      const std::uint64_t end =
          file + 1 == weights_.size() ? bytes : std::min(bytes, blocks * PageStore::kBlockBytes);
      if (end > begin) add(file, begin, end - begin);
      begin = std::max(begin, end);
    }
  }

  /// Extent B follows all of extent A.
  std::vector<std::uint64_t> finish(std::vector<Segment>& segments, int extents) {
    for (Segment& segment : segments_) {
      segment.offset[1] =
          segment.offset[0] +
          (extents == 2 ? used_[static_cast<std::size_t>(segment.file - first_file_)] : 0);
    }
    segments = std::move(segments_);
    std::vector<std::uint64_t> bytes;
    for (const std::uint64_t used : used_) {
      bytes.push_back(kHeaderBytes + static_cast<std::uint64_t>(extents) * used);
    }
    return bytes;
  }

 private:
  void add(std::size_t file, std::uint64_t begin, std::uint64_t bytes) {
    segments_.push_back(
        {first_file_ + static_cast<int>(file), begin, bytes, {kHeaderBytes + used_[file], 0}});
    used_[file] += bytes;
  }

  [[nodiscard]] std::size_t least_used() const {
    std::size_t best = 0;
    const auto load = [this](std::size_t file) {
      return static_cast<double>(used_[file]) / weights_[file];
    };
    for (std::size_t file = 1; file < used_.size(); ++file) {
      if (load(file) < load(best)) best = file;
    }
    return best;
  }

  std::vector<double> weights_;
  std::vector<std::uint64_t> used_;
  int first_file_;
  std::vector<Segment> segments_;
};

}  // namespace

std::vector<std::uint64_t> data_file_bytes(std::span<const PageSpec> specs,
                                           std::span<const double> weights, int extents) {
  Layout layout(weights);
  for (const PageSpec& spec : specs) layout.place(spec.bytes);
  std::vector<Segment> segments;
  return layout.finish(segments, extents);
}

PageTable::PageTable(std::vector<PageSpec> specs, std::span<const double> weights, int extents,
                     int first_file)
    : specs_(std::move(specs)), extents_(extents) {
  Layout layout(weights, first_file);
  for (const PageSpec& spec : specs_) layout.place(spec.bytes);
  file_bytes_ = layout.finish(segments_, extents);
  index_pages();
}

PageTable::PageTable(std::vector<PageSpec> specs, std::vector<Segment> segments,
                     std::vector<std::uint64_t> file_bytes, int extents)
    : specs_(std::move(specs)),
      segments_(std::move(segments)),
      file_bytes_(std::move(file_bytes)),
      extents_(extents) {
  index_pages();
}

void PageTable::index_pages() {
  std::uint64_t block = 0;
  std::size_t segment = 0;
  for (std::size_t page = 0; page < specs_.size(); ++page) {
    const PageSpec& spec = specs_[page];
    require(spec.bytes > 0, ErrorKind::internal, "page {} ({}) has no bytes", spec.id.value,
            spec.description);
    require(index_.emplace(spec.id, page).second, ErrorKind::internal,
            "two pages have the id {}; the second is {}", spec.id.value, spec.description);
    first_block_.push_back(block);
    first_segment_.push_back(segment);
    block += (spec.bytes + PageStore::kBlockBytes - 1) / PageStore::kBlockBytes;
    std::uint64_t placed = 0;
    for (; placed < spec.bytes && segment < segments_.size(); ++segment) {
      placed += segments_[segment].bytes;
    }
    require(placed == round_up(spec.bytes, PageStore::kAlignment), ErrorKind::corrupt,
            "page {} ({}) of {} bytes has space for {}", spec.id.value, spec.description,
            spec.bytes, placed);
  }
  first_block_.push_back(block);
  first_segment_.push_back(segment);
  states_.resize(specs_.size());
  for (int extent = 0; extent < extents_; ++extent) {
    checksums_[static_cast<std::size_t>(extent)].resize(block);
  }
}

std::span<const Segment> PageTable::segments_of(std::size_t page) const {
  return std::span(segments_).subspan(first_segment_[page],
                                      first_segment_[page + 1] - first_segment_[page]);
}

std::optional<std::size_t> PageTable::find(PageId id) const {
  const auto found = index_.find(id);
  return found == index_.end() ? std::nullopt : std::optional(found->second);
}

std::size_t PageTable::index_of(PageId id) const {
  const auto found = find(id);
  require(found.has_value(), ErrorKind::internal, "the page store has no page with the id {}",
          id.value);
  return *found;
}

std::span<std::uint64_t> PageTable::checksums(std::size_t page, int extent) {
  return std::span(checksums_[static_cast<std::size_t>(extent)])
      .subspan(first_block_[page], first_block_[page + 1] - first_block_[page]);
}

int PageTable::begin_read(std::size_t page) const {
  const std::scoped_lock lock(mutex_);
  const State& state = states_[page];
  require(!state.writing && state.current >= 0, ErrorKind::internal,
          "page {} ({}) is to be read, but {}", specs_[page].id.value, specs_[page].description,
          state.writing ? "is being written" : "was never written");
  return state.current;
}

int PageTable::begin_write(std::size_t page) {
  const std::scoped_lock lock(mutex_);
  State& state = states_[page];
  require(!state.writing && !committing_, ErrorKind::internal,
          "page {} ({}) is to be written, but {}", specs_[page].id.value, specs_[page].description,
          committing_ ? "a commit is on" : "is being written already");
  state.writing = true;
  ++writing_;
  return extents_ == 2 && state.committed.extent == 0 ? 1 : 0;
}

void PageTable::end_write(std::size_t page) {
  const std::scoped_lock lock(mutex_);
  State& state = states_[page];
  state.writing = false;
  state.is_new = true;
  state.current = extents_ == 2 && state.committed.extent == 0 ? 1 : 0;
  --writing_;
}

void PageTable::begin_commit() {
  const std::scoped_lock lock(mutex_);
  require(writing_ == 0 && !committing_, ErrorKind::internal,
          "a commit is to be made, but {} pages are being written, or their write has failed",
          writing_);
  committing_ = true;
}

void PageTable::end_commit(std::optional<Version> version) {
  const std::scoped_lock lock(mutex_);
  committing_ = false;
  if (!version) return;
  for (State& state : states_) {
    if (state.is_new) state.committed = {state.current, *version};
    state.is_new = false;
  }
}

bool PageTable::has_uncommitted() const {
  const std::scoped_lock lock(mutex_);
  return writing_ > 0 || std::any_of(states_.begin(), states_.end(),
                                     [](const State& state) { return state.is_new; });
}

void PageTable::discard() {
  const std::scoped_lock lock(mutex_);
  require(writing_ == 0 && !committing_, ErrorKind::internal,
          "what was written since the last commit is to be dropped, but {}",
          committing_ ? "a commit is on" : "a page is being written");
  for (State& state : states_) {
    state.current = state.committed.extent;
    state.is_new = false;
  }
}

PageTable::Committed PageTable::next(std::size_t page, Version version) const {
  const std::scoped_lock lock(mutex_);
  const State& state = states_[page];
  return state.is_new ? Committed{state.current, version} : state.committed;
}

PageTable::Committed PageTable::committed(std::size_t page) const {
  const std::scoped_lock lock(mutex_);
  return states_[page].committed;
}

void PageTable::restore(std::size_t page, Committed committed) {
  const std::scoped_lock lock(mutex_);
  states_[page] = {.committed = committed, .current = committed.extent};
}

}  // namespace terrace::io
