#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "terrace/io/engine.h"
#include "terrace/io/page_store.h"
#include "terrace/io/ring.h"

namespace terrace::io {

class PageTable;
struct Segment;

/// One thread's way to the pages of a store, with an engine of its own. Single-owner: one thread at
/// a time, which may be another than the one that opened it.
///
/// Memory: a target or source starts at a multiple of 4096 and is at least as long as the page,
/// rounded up to a multiple of 4096; bytes beyond that are not touched. The bytes between the
/// page's end and that multiple travel along, unchecked: a read overwrites them. The memory belongs
/// to the caller and stays valid until the tag is returned, or the channel has thrown or is gone.
///
/// Transfers go on only while the owner is in a call: up to the queue's depth of pieces
/// (`EngineOptions::piece_bytes`) is in flight meanwhile. Where the channels of a store take turns
/// (`Phases::apart`), `read`, `write` and `wait` block until it is this one's, and its turn is over
/// only when nothing of it is in flight: an owner waits for its own pages before it waits for
/// another owner.
///
/// Errors, from `wait` (and from `read` and `write`, which collect too): kind `io`, naming path,
/// offset, length, expected, found and the errno, or the page whose checksum differs. Before it is
/// thrown everything in flight has come to rest. The channel is then of no more use, and a store
/// with a failed write refuses to commit.
class PageChannel {
 public:
  PageChannel(PageStore& store, const ChannelOptions& options);
  /// Waits for what is in flight.
  ~PageChannel();
  PageChannel(const PageChannel&) = delete;
  PageChannel& operator=(const PageChannel&) = delete;

  /// Pins the memory that pages will move to and from; see `Engine::register_buffers`.
  void register_buffers(std::span<const std::span<std::byte>> buffers);

  /// Starts reading the page's current contents: the last complete write, committed or not.
  /// Every block is verified before the tag is returned. Errors: `internal` when the page does not
  /// exist, was never written or is being written.
  void read(PageId id, std::span<std::byte> target, std::uint64_t tag);

  /// Starts writing the page to its uncommitted extent. When the tag is returned the page's
  /// current contents are these, for every channel. A second write before the commit overwrites
  /// the first. `checksums`, when given, are `crc64` of each block of the page (the last one only
  /// up to the page's end), copied before the call returns; they save a pass over the data.
  void write(PageId id, std::span<const std::byte> source, std::uint64_t tag,
             std::span<const std::uint64_t> checksums = {});

  /// Blocks until a page is complete (or returns 0 when none is in flight) and returns how many
  /// tags it put to the front of `done_tags`, in the order in which they were completed.
  [[nodiscard]] std::size_t wait(std::span<std::uint64_t> done_tags);
  /// Gives up what is under way: waits until nothing touches the memory any more, and ends this
  /// channel's turn, so that others go on. The channel is then of no more use. For an owner that
  /// will not wait for its pages; an error of the channel itself does the same.
  void abandon() noexcept;
  /// Pages started whose tag has not been returned; at most `ChannelOptions::pages_max`.
  [[nodiscard]] std::size_t in_flight() const { return transfers_.size() - free_.size(); }

  [[nodiscard]] Capabilities capabilities() const { return engine_->capabilities(); }

 private:
  /// One page on its way.
  struct Transfer {
    Operation kind = Operation::read;
    PageTable* table = nullptr;  ///< of the store
    std::size_t page = 0;        ///< index in the table
    int extent = 0;
    std::byte* data = nullptr;
    std::uint64_t tag = 0;
    bool has_checksums = false;
    std::uint64_t started = 0;  ///< bytes given to the engine
    std::uint64_t moved = 0;    ///< bytes complete
  };

  void check(const PageSpec& page, std::span<const std::byte> memory) const;
  void add(const Transfer& transfer);
  /// Gives the engine what it has room for; computes a piece's checksums just before.
  void pump();
  void start_piece(int slot);
  /// Bytes of the piece that starts at `place` of a page, a place where one does.
  [[nodiscard]] std::uint64_t piece_at(const Segment& segment, std::uint64_t place) const;
  void start_flush();
  /// Whether a piece may start. Where channels take turns it waits for this one's when nothing is
  /// in flight, and ends it after a while.
  [[nodiscard]] bool may_start();
  void settle(Completion& completion);
  void verify(const Transfer& transfer, std::uint64_t begin, std::uint64_t bytes);
  /// Throws; what collects abandons.
  [[noreturn]] void fail(const std::string& message);
  void collect(std::size_t min);

  PageStore& store_;
  std::unique_lock<Turns> turn_;  ///< without a mutex: no turns. Given back after the engine's end
  std::uint64_t turn_bytes_left_ = 0;
  std::unique_ptr<Engine> engine_;
  std::vector<Transfer> transfers_;
  std::vector<int> free_;
  Ring<int> waiting_;  ///< not yet wholly started, in order
  Ring<int> done_;     ///< complete, tag not yet returned
  std::vector<Completion> completions_;
  std::uint64_t piece_bytes_ = 0;
  std::uint64_t unflushed_bytes_ = 0;
  int flushes_ = 0;  ///< in flight
  bool failed_ = false;
};

}  // namespace terrace::io
