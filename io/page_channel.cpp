#include "terrace/io/page_channel.h"

#include <algorithm>
#include <utility>

#include "page_table.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/checksum.h"

namespace terrace::io {
namespace {

constexpr std::uint64_t kBlock = PageStore::kBlockBytes;
/// The token of a piece: the transfer's slot above, its first byte's place in the page below.
constexpr int kPlaceBits = 44;
/// Lengths of the whole queue that a turn moves: the queue runs empty at its end, which then costs
/// a small part of it.
constexpr std::uint64_t kQueuesATurn = 4;
/// The token of a flush that was begun early.
constexpr std::uint64_t kFlushToken = ~std::uint64_t{0};

const Segment& segment_at(std::span<const Segment> segments, std::uint64_t place) {
  const auto after = std::upper_bound(
      segments.begin(), segments.end(), place,
      [](std::uint64_t value, const Segment& segment) { return value < segment.begin; });
  return *(after - 1);
}

}  // namespace

PageChannel::PageChannel(PageStore& store, const ChannelOptions& options)
    : store_(store),
      transfers_(options.pages_max),
      waiting_(options.pages_max),
      done_(options.pages_max) {
  if (store.phases() == Phases::apart) turn_ = std::unique_lock(store.turns_, std::defer_lock);
  EngineOptions wanted = store.options_.engine;
  // Twice what is in flight, so that the next piece is ready when one completes.
  wanted.requests_max = 2 * static_cast<std::size_t>(wanted.depth) * store.folders_.size();
  piece_bytes_ = wanted.piece_bytes;
  engine_ = store.new_engine(wanted);
  store.open_data_files(*engine_);
  completions_.resize(wanted.requests_max);
  for (int i = static_cast<int>(options.pages_max); i-- > 0;) free_.push_back(i);
  ++store_.channels_;
}

PageChannel::~PageChannel() { --store_.channels_; }

void PageChannel::register_buffers(std::span<const std::span<std::byte>> buffers) {
  engine_->register_buffers(buffers);
}

void PageChannel::check(const PageSpec& spec, std::span<const std::byte> memory) const {
  require(!failed_, ErrorKind::internal, "a channel is used after it failed");
  require(!free_.empty(), ErrorKind::internal, "more than {} pages are in flight on a channel",
          transfers_.size());
  require(
      memory.size() >= round_up(spec.bytes, PageStore::kAlignment) &&
          reinterpret_cast<std::uintptr_t>(memory.data()) % PageStore::kAlignment == 0,
      ErrorKind::internal,
      "page {} ({}) of {} bytes needs memory at a multiple of {}, rounded up to one, but has {} "
      "bytes at {}",
      spec.id.value, spec.description, spec.bytes, PageStore::kAlignment, memory.size(),
      static_cast<const void*>(memory.data()));
}

void PageChannel::add(const Transfer& transfer) {
  const int slot = free_.back();
  free_.pop_back();
  transfers_[static_cast<std::size_t>(slot)] = transfer;
  waiting_.push(slot);
  collect(0);
}

void PageChannel::read(PageId id, std::span<std::byte> target, std::uint64_t tag) {
  PageTable& table = store_.table_of(id);
  const std::size_t page = table.index_of(id);
  check(table.specs()[page], target);
  add({.kind = Operation::read,
       .table = &table,
       .page = page,
       .extent = table.begin_read(page),
       .data = target.data(),
       .tag = tag});
}

void PageChannel::write(PageId id, std::span<const std::byte> source, std::uint64_t tag,
                        std::span<const std::uint64_t> checksums) {
  PageTable& table = store_.table_of(id);
  const std::size_t page = table.index_of(id);
  check(table.specs()[page], source);
  if (&table == store_.table_.get() && table.extents() == 1) store_.mark_torn();
  const int extent = table.begin_write(page);
  const auto sums = table.checksums(page, extent);
  require(checksums.empty() || checksums.size() == sums.size(), ErrorKind::internal,
          "page {} has {} blocks, but {} checksums were given", id.value, sums.size(),
          checksums.size());
  std::ranges::copy(checksums, sums.begin());
  add({.kind = Operation::write,
       .table = &table,
       .page = page,
       .extent = extent,
       // The engine only reads it; its requests have one pointer for both directions.
       .data = const_cast<std::byte*>(source.data()),
       .tag = tag,
       .has_checksums = !checksums.empty()});
}

void PageChannel::start_flush() {
  for (std::size_t file = 0; file < store_.folders_.size(); ++file) {
    const Request flush{
        .kind = Operation::flush, .file = FileId(static_cast<int>(file)), .token = kFlushToken};
    if (engine_->submit({&flush, 1}) == 0) break;  // The commit flushes what this leaves.
    ++flushes_;
  }
  unflushed_bytes_ = 0;
}

void PageChannel::pump() {
  const std::uint64_t flush_bytes = store_.options_.flush_every_bytes;
  if (flush_bytes > 0 && unflushed_bytes_ >= flush_bytes && flushes_ == 0) start_flush();
  while (!waiting_.empty() && engine_->room() > 0 && may_start()) start_piece(waiting_.front());
}

bool PageChannel::may_start() {
  if (turn_.mutex() == nullptr) return true;
  if (!turn_.owns_lock()) {
    turn_.lock();
    // The engine holds twice what is in flight.
    turn_bytes_left_ = kQueuesATurn * completions_.size() / 2 * piece_bytes_;
  }
  return turn_bytes_left_ > 0;
}

std::uint64_t PageChannel::piece_at(const Segment& segment, std::uint64_t place) const {
  return std::min(piece_bytes_, segment.begin + segment.bytes - place);
}

void PageChannel::start_piece(int slot) {
  Transfer& transfer = transfers_[static_cast<std::size_t>(slot)];
  PageTable& table = *transfer.table;
  const auto segments = table.segments_of(transfer.page);
  const std::uint64_t place = transfer.started;
  const Segment& segment = segment_at(segments, place);
  const std::uint64_t bytes = piece_at(segment, place);
  if (transfer.kind == Operation::write && !transfer.has_checksums) {
    const std::uint64_t end = std::min(place + bytes, table.specs()[transfer.page].bytes);
    const auto sums = table.checksums(transfer.page, transfer.extent);
    for (std::uint64_t begin = place; begin < end; begin += kBlock) {
      sums[begin / kBlock] =
          crc64({transfer.data + begin, static_cast<std::size_t>(std::min(kBlock, end - begin))});
    }
  }
  const Request request{
      .kind = transfer.kind,
      .file = FileId(segment.file),
      .offset = segment.offset[static_cast<std::size_t>(transfer.extent)] + (place - segment.begin),
      .data = transfer.data + place,
      .size = bytes,
      .token = static_cast<std::uint64_t>(slot) << kPlaceBits | place};
  require(engine_->submit({&request, 1}) == 1, ErrorKind::internal, "the engine has no room");
  transfer.started += bytes;
  turn_bytes_left_ -= std::min(turn_bytes_left_, bytes);
  if (transfer.started >= table.specs()[transfer.page].bytes) waiting_.pop();
}

void PageChannel::settle(Completion& completion) {
  if (completion.error != 0) fail(std::move(completion.message));
  if (completion.token == kFlushToken) {
    --flushes_;
    return;
  }
  const int slot = static_cast<int>(completion.token >> kPlaceBits);
  const std::uint64_t place = completion.token & ((1ULL << kPlaceBits) - 1);
  Transfer& transfer = transfers_[static_cast<std::size_t>(slot)];
  PageTable& table = *transfer.table;
  const Segment& segment = segment_at(table.segments_of(transfer.page), place);
  const std::uint64_t bytes = piece_at(segment, place);
  if (transfer.kind == Operation::read) verify(transfer, place, bytes);
  transfer.moved += bytes;
  if (transfer.moved < table.specs()[transfer.page].bytes) return;
  // No commit waits for scratch.
  const bool kept = transfer.table == store_.table_.get();
  if (transfer.kind == Operation::write && kept) unflushed_bytes_ += transfer.moved;
  done_.push(slot);
}

void PageChannel::verify(const Transfer& transfer, std::uint64_t begin, std::uint64_t bytes) {
  const PageSpec& spec = transfer.table->specs()[transfer.page];
  const auto sums = transfer.table->checksums(transfer.page, transfer.extent);
  const std::uint64_t end = std::min(begin + bytes, spec.bytes);
  for (std::uint64_t block = begin; block < end; block += kBlock) {
    const std::uint64_t length = std::min(kBlock, end - block);
    const std::uint64_t found = crc64({transfer.data + block, static_cast<std::size_t>(length)});
    const std::uint64_t expected = sums[block / kBlock];
    if (found == expected) continue;
    const Segment& segment = segment_at(transfer.table->segments_of(transfer.page), begin);
    fail(fmt::format(
        "page {} ({}) was read from {} with other bytes than were written: the {} bytes at offset "
        "{} have the checksum {:016x}, but {:016x} was expected; the drive or its cable is faulty, "
        "or the file was altered: {}",
        spec.id.value, spec.description,
        store_.data_path(static_cast<std::size_t>(segment.file)).string(), length,
        segment.offset[static_cast<std::size_t>(transfer.extent)] + (block - segment.begin), found,
        expected,
        transfer.table == store_.table_.get()
            ? "resume from a checkpoint"
            : "no state was in it, so run again with --resume auto"));
  }
}

void PageChannel::abandon() noexcept {
  failed_ = true;
  engine_->cancel();
  try {
    while (engine_->in_flight() > 0) (void)engine_->wait(completions_, 1);
  } catch (const Error&) {
    // The queue has failed. What was in flight is at rest all the same.
  }
  if (turn_.owns_lock()) turn_.unlock();
}

void PageChannel::fail(const std::string& message) {
  throw Error(ErrorKind::io, message, __FILE__, __LINE__);
}

void PageChannel::collect(std::size_t min) {
  try {
    pump();
    const std::size_t count = engine_->wait(completions_, min);
    for (std::size_t i = 0; i < count; ++i) settle(completions_[i]);
    if (turn_.owns_lock() && engine_->in_flight() == 0) turn_.unlock();
    if (count > 0) pump();
  } catch (...) {
    abandon();
    throw;
  }
}

std::size_t PageChannel::wait(std::span<std::uint64_t> done_tags) {
  require(!failed_, ErrorKind::internal, "a channel is used after it failed");
  collect(0);
  while (done_.empty() && in_flight() > 0) collect(1);
  std::size_t count = 0;
  while (count < done_tags.size() && !done_.empty()) {
    const int slot = done_.pop();
    const Transfer& transfer = transfers_[static_cast<std::size_t>(slot)];
    if (transfer.kind == Operation::write) transfer.table->end_write(transfer.page);
    done_tags[count++] = transfer.tag;
    free_.push_back(slot);
  }
  return count;
}

}  // namespace terrace::io
