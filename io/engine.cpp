#include "terrace/io/engine.h"

#include <algorithm>
#include <cerrno>
#include <limits>

#include "advice.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::io {
namespace {

/// Times in a row that one piece may make no progress. The pauses before them double from 10 us to
/// 50 ms, a second in all, after which the device is broken rather than busy.
constexpr int kRetriesMax = 32;
constexpr std::int64_t kPauseMaxUs = 50'000;
/// How long a queue that has failed may tell nothing before what is in it is given up, and the
/// pauses between two looks.
constexpr std::int64_t kRestMaxUs = 2'000'000;
constexpr std::int64_t kRestPauseUs = 1'000;

bool is_passing(int code) { return code == EAGAIN || code == EINTR || code == EBUSY; }

bool is_aligned(std::uint64_t value, std::uint32_t alignment) { return value % alignment == 0; }

std::string_view verb(Operation kind) {
  switch (kind) {
    case Operation::read:
      return "read";
    case Operation::write:
      return "write";
    case Operation::flush:
      return "flush";
  }
  return "";
}

}  // namespace

Engine::Engine(std::unique_ptr<Driver> driver, const EngineOptions& options, Log& log)
    : driver_(std::move(driver)), options_(options), log_(log) {
  require(options.depth > 0 && options.files_max > 0 && options.requests_max > 0,
          ErrorKind::internal, "an I/O engine needs a depth, files and requests above 0");
  require(options.piece_bytes > 0 && options.piece_bytes % 4096 == 0 &&
              options.piece_bytes <= kPieceBytesMax,
          ErrorKind::usage,
          "the I/O block size is {} bytes, but a multiple of 4096 up to {} is "
          "expected",
          options.piece_bytes, kPieceBytesMax);
  files_.reserve(static_cast<std::size_t>(options.files_max));
  requests_.resize(options.requests_max);
  pieces_.resize(static_cast<std::size_t>(driver_depth(options)));
  outcomes_.resize(pieces_.size());
  for (int i = static_cast<int>(requests_.size()); i-- > 0;) free_requests_.push_back(i);
  for (int i = static_cast<int>(pieces_.size()); i-- > 0;) free_pieces_.push_back(i);
}

Engine::~Engine() {
  // The kernel reads and writes the callers' memory until the last outcome is in. Nothing new is
  // started.
  try {
    while (pieces_in_flight_ > 0) {
      pieces_in_flight_ -= static_cast<int>(driver_->reap(outcomes_, true));
    }
  } catch (const Error&) {
    come_to_rest();
  }
}

OpenedFile Engine::open(const std::filesystem::path& path, const OpenOptions& options) {
  require(files_.size() < static_cast<std::size_t>(options_.files_max), ErrorKind::internal,
          "cannot open {}: the engine was made for {} files", path.native(), options_.files_max);
  OpenOptions wanted = options;
  wanted.direct = wanted.direct && options_.direct;
  File file{.path = path, .opened = driver_->open(path, wanted)};
  files_.push_back(std::move(file));
  if (wanted.direct && files_.back().opened.direct_error != 0) {
    leave_direct(files_.back(), files_.back().opened.direct_error, "at open");
  }
  return files_.back().opened;
}

template <class Slot>
void Engine::append(std::vector<Slot>& slots, List& list, int index) {
  slots[static_cast<std::size_t>(index)].next = kNone;
  (list.tail == kNone ? list.head : slots[static_cast<std::size_t>(list.tail)].next) = index;
  list.tail = index;
}

template <class Slot>
int Engine::take(std::vector<Slot>& slots, List& list) {
  const int index = list.head;
  list.head = slots[static_cast<std::size_t>(index)].next;
  if (list.head == kNone) list.tail = kNone;
  return index;
}

void Engine::check_alignment(const Request& request) const {
  const File& file = files_[static_cast<std::size_t>(request.file.value)];
  const bool aligned =
      is_aligned(reinterpret_cast<std::uintptr_t>(request.data), file.opened.memory_alignment) &&
      is_aligned(request.offset, file.opened.offset_alignment) &&
      is_aligned(request.size, file.opened.offset_alignment);
  require(aligned || !file.opened.direct, ErrorKind::internal,
          "a {} of {} bytes at offset {} of {} from address {} is not aligned to {} (memory) and "
          "{} (file)",
          verb(request.kind), request.size, request.offset, file.path.native(),
          static_cast<const void*>(request.data), file.opened.memory_alignment,
          file.opened.offset_alignment);
}

std::size_t Engine::submit(std::span<const Request> requests) {
  require(!broken_, ErrorKind::internal, "an I/O engine is used after its queue has failed");
  const std::size_t count = std::min(requests.size(), free_requests_.size());
  for (const Request& request : requests.first(count)) check_alignment(request);
  for (const Request& request : requests.first(count)) {
    const int index = free_requests_.back();
    free_requests_.pop_back();
    RequestSlot& slot = requests_[static_cast<std::size_t>(index)];
    slot.request = request;
    slot.started = 0;
    slot.all_started = request.size == 0 && request.kind != Operation::flush;
    slot.outstanding = 0;
    slot.error = 0;
    if (slot.all_started) {
      append(requests_, ready_, index);
    } else {
      append(requests_, files_[static_cast<std::size_t>(request.file.value)].waiting, index);
    }
  }
  pump();
  return count;
}

std::size_t Engine::wait(std::span<Completion> completions, std::size_t min) {
  min = std::min({min, completions.size(), in_flight()});
  std::size_t count = take_ready(completions);
  do {
    pump();
    collect(count < min && pieces_in_flight_ > 0);
    pump();
    count += take_ready(completions.subspan(count));
  } while (count < min);
  return count;
}

void Engine::cancel() {
  for (RequestSlot& slot : requests_) {
    const bool is_done = slot.all_started && slot.outstanding == 0;
    if (!is_done && slot.error == 0) slot.error = ECANCELED;
  }
}

void Engine::collect(bool block) {
  if (broken_) return;  // Everything is returned already, or given up.
  try {
    const std::size_t found = driver_->reap(outcomes_, block);
    for (std::size_t i = 0; i < found; ++i) settle(outcomes_[i]);
  } catch (const Error&) {
    come_to_rest();
    throw;
  }
}

void Engine::come_to_rest() {
  broken_ = true;
  cancel();
  std::int64_t progress_us = now_us();
  while (pieces_in_flight_ > 0 && now_us() - progress_us < kRestMaxUs) {
    std::size_t found = 0;
    try {
      found = driver_->reap(outcomes_, false);
    } catch (const Error&) {
      // Asked again: what has failed once may yet tell what is complete.
    }
    for (std::size_t i = 0; i < found; ++i) settle(outcomes_[i]);
    if (found > 0) progress_us = now_us();
    if (found == 0 && pieces_in_flight_ > 0) sleep_us(kRestPauseUs);
  }
  for (File& file : files_) (void)next_piece(file);  // lets go of what was not started
  // What is left is in flight and not heard of any more: given up, too.
  for (std::size_t index = 0; pieces_in_flight_ > 0 && index < pieces_.size(); ++index) {
    if (pieces_[index].request == kNone) continue;
    --pieces_in_flight_;
    release_piece(static_cast<int>(index));
  }
}

std::size_t Engine::take_ready(std::span<Completion> completions) {
  std::size_t count = 0;
  while (count < completions.size() && ready_.head != kNone) {
    const int index = take(requests_, ready_);
    RequestSlot& slot = requests_[static_cast<std::size_t>(index)];
    completions[count].token = slot.request.token;
    completions[count].error = slot.error;
    completions[count].message.swap(slot.message);
    slot.message.clear();
    free_requests_.push_back(index);
    ++count;
  }
  return count;
}

void Engine::pump() {
  if (pause_us_ > 0) sleep_us(std::exchange(pause_us_, 0));
  bool pushed = false;
  for (File& file : files_) pushed |= pump(file);
  if (!pushed) return;
  try {
    driver_->start();
  } catch (const Error&) {
    come_to_rest();
    throw;
  }
}

bool Engine::pump(File& file) {
  if (file.leaving_direct) {
    if (file.in_flight > 0) return false;
    driver_->use_page_cache(file.opened.id);
    file.opened.memory_alignment = file.opened.offset_alignment = 1;
    file.opened.direct = file.leaving_direct = false;
  }
  bool pushed = false;
  while (file.in_flight < options_.depth) {
    const int index = next_piece(file);
    if (index == kNone) break;
    driver_->push(pieces_[static_cast<std::size_t>(index)].piece);
    ++file.in_flight;
    ++pieces_in_flight_;
    pushed = true;
  }
  return pushed;
}

int Engine::next_piece(File& file) {
  while (file.again.head != kNone) {
    const int index = take(pieces_, file.again);
    const PieceSlot& piece = pieces_[static_cast<std::size_t>(index)];
    if (requests_[static_cast<std::size_t>(piece.request)].error == 0) return index;
    release_piece(index);
  }
  while (file.waiting.head != kNone && !free_pieces_.empty()) {
    const int owner = file.waiting.head;
    RequestSlot& slot = requests_[static_cast<std::size_t>(owner)];
    const std::uint64_t left = slot.request.size - slot.started;
    if (slot.error != 0) {  // The rest of a failed request is not worth moving.
      take(requests_, file.waiting);
      slot.all_started = true;
      finish_if_done(owner);
      continue;
    }
    const int index = free_pieces_.back();
    free_pieces_.pop_back();
    PieceSlot& piece = pieces_[static_cast<std::size_t>(index)];
    const auto length = static_cast<std::uint32_t>(std::min(left, options_.piece_bytes));
    const bool moves = slot.request.kind != Operation::flush;
    piece.piece = {slot.request.kind,
                   slot.request.file,
                   slot.request.offset + slot.started,
                   moves ? slot.request.data + slot.started : nullptr,
                   moves ? length : 0,
                   static_cast<std::uint32_t>(index)};
    piece.request = owner;
    piece.retries = 0;
    slot.started += length;
    ++slot.outstanding;
    if (!moves || slot.started == slot.request.size) {
      take(requests_, file.waiting);
      slot.all_started = true;
    }
    return index;
  }
  return kNone;
}

void Engine::settle(const Outcome& outcome) {
  const int index = static_cast<int>(outcome.slot);
  PieceSlot& slot = pieces_[outcome.slot];
  File& file = files_[static_cast<std::size_t>(slot.piece.file.value)];
  --file.in_flight;
  --pieces_in_flight_;
  if (requests_[static_cast<std::size_t>(slot.request)].error != 0) {
    release_piece(index);  // A sibling has failed already.
  } else if (outcome.result < 0) {
    settle_error(file, index, -outcome.result);
  } else {
    settle_moved(file, index, static_cast<std::uint64_t>(outcome.result));
  }
}

void Engine::settle_moved(File& file, int index, std::uint64_t moved) {
  PieceSlot& slot = pieces_[static_cast<std::size_t>(index)];
  Piece& piece = slot.piece;
  if (piece.kind == Operation::flush || moved == piece.size) {
    release_piece(index);
    return;
  }
  if (moved > piece.size) {
    fail_request(file, slot, EIO, fmt::format("{} bytes were moved", moved));
    release_piece(index);
    return;
  }
  if (piece.kind == Operation::read) {
    // A short read is either an interruption or the end of the file; only its size tells.
    const std::uint64_t end = driver_->size_of(piece.file);
    if (piece.offset + moved >= end) {
      fail_request(file, slot, ENODATA, fmt::format("the file ends at byte {}", end));
      release_piece(index);
      return;
    }
  }
  const std::uint64_t kept = moved - moved % file.opened.offset_alignment;
  piece.offset += kept;
  piece.data += kept;
  piece.size -= static_cast<std::uint32_t>(kept);
  if (kept == 0) {
    retry(file, index, EAGAIN);
  } else {
    slot.retries = 0;
    append(pieces_, file.again, index);
  }
}

void Engine::settle_error(File& file, int index, int code) {
  if (is_passing(code)) {
    retry(file, index, code);
    return;
  }
  // Our pieces are aligned, so that EINVAL on a direct file means that the file system accepted
  // O_DIRECT at open and cannot do it. Pieces that were in flight meanwhile come here as well.
  if (code == EINVAL && file.opened.direct) {
    if (!file.leaving_direct) leave_direct(file, code, "at the first transfer");
    append(pieces_, file.again, index);
    return;
  }
  fail_request(file, pieces_[static_cast<std::size_t>(index)], code, "");
  release_piece(index);
}

void Engine::retry(File& file, int index, int code) {
  PieceSlot& slot = pieces_[static_cast<std::size_t>(index)];
  if (++slot.retries > kRetriesMax) {
    fail_request(file, slot, code, fmt::format("no progress in {} attempts", kRetriesMax));
    release_piece(index);
    return;
  }
  if (slot.retries > 1) {
    pause_us_ = std::max(pause_us_, std::min(kPauseMaxUs, std::int64_t{5} << slot.retries));
  }
  append(pieces_, file.again, index);
}

void Engine::leave_direct(File& file, int code, std::string_view when) {
  file.leaving_direct = file.opened.direct;
  log_.fallback(
      "io.direct:" + file.path.native(),
      fmt::format("{} refuses O_DIRECT {} with {}, so the page cache is used, which costs "
                  "memory and CPU time; put the folder on a local file system such as ext4 "
                  "or xfs",
                  file.path.native(), when, errno_name(code)));
}

void Engine::fail_request(File& file, const PieceSlot& slot, int code, std::string_view found) {
  RequestSlot& owner = requests_[static_cast<std::size_t>(slot.request)];
  owner.error = code;
  if (slot.piece.kind == Operation::flush) {
    owner.message = fmt::format("cannot make the writes to {} durable: {}{}", file.path.native(),
                                errno_name(code), advice(code, file.path));
    return;
  }
  owner.message = fmt::format(
      "cannot {} {} bytes at offset {} of {}: expected {} bytes at offset "
      "{}, found {}{}{}{}",
      verb(slot.piece.kind), owner.request.size, owner.request.offset, file.path.native(),
      slot.piece.size, slot.piece.offset, errno_name(code), found.empty() ? "" : ", ", found,
      advice(code, file.path));
}

void Engine::release_piece(int index) {
  const int owner = std::exchange(pieces_[static_cast<std::size_t>(index)].request, kNone);
  free_pieces_.push_back(index);
  --requests_[static_cast<std::size_t>(owner)].outstanding;
  finish_if_done(owner);
}

void Engine::finish_if_done(int request) {
  const RequestSlot& slot = requests_[static_cast<std::size_t>(request)];
  if (slot.all_started && slot.outstanding == 0) append(requests_, ready_, request);
}

void Engine::register_buffers(std::span<const std::span<std::byte>> buffers) {
  const int code = driver_->register_buffers(buffers);
  registered_ = code == 0 && !buffers.empty();
  if (code == 0 || driver_->name() != "io_uring") return;
  std::uint64_t bytes = 0;
  for (const auto& buffer : buffers) bytes += buffer.size();
  log_.fallback(
      "io.register",
      fmt::format("the kernel refuses to register {} of I/O buffers with {}; each transfer "
                  "pins its memory instead, which costs CPU time; raise the limit with "
                  "'ulimit -l unlimited' (docker run --ulimit memlock=-1)",
                  format_bytes(bytes), errno_name(code)));
}

Capabilities Engine::capabilities() const {
  const bool direct =
      options_.direct && std::all_of(files_.begin(), files_.end(), [](const File& f) {
        return f.opened.direct && !f.leaving_direct;
      });
  return {driver_->name(), direct, registered_};
}

}  // namespace terrace::io
