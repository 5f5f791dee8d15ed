#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "file_table.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/driver.h"

namespace terrace::io {
namespace {

/// Files that one ring may open; the registered table is sparse and made once.
constexpr unsigned kFilesMax = 64;
/// The kernel refuses a longer single buffer with EFAULT, even for root.
constexpr std::size_t kRegisteredBytesMax = kGiB;

/// Set-up flags, best first; an older kernel refuses what it does not know with EINVAL. Not among
/// them is a single issuer: of its ring no other thread could collect what is in flight, and
/// whoever destroys an engine has to wait for that.
constexpr std::array kSetupFlags = {IORING_SETUP_COOP_TASKRUN, 0U};

/// Calls in a row that may fail without moving anything, which a signal or a shortage brings about.
/// The pauses between them double from 10 us to 50 ms, two seconds in all.
constexpr int kEnterRetriesMax = 50;
constexpr std::int64_t kEnterPauseMaxUs = 50'000;
/// The same for interruptions, which need no pause: a profiler's signals come every millisecond.
constexpr int kInterruptionsMax = 100'000;

class UringDriver final : public Driver {
 public:
  UringDriver(const io_uring& ring, bool files_registered)
      : ring_(ring), files_registered_(files_registered) {}
  ~UringDriver() override { io_uring_queue_exit(&ring_); }

  [[nodiscard]] std::string_view name() const override { return "io_uring"; }

  OpenedFile open(const std::filesystem::path& path, const OpenOptions& options) override {
    const OpenedFile opened = files_.open(path, options);
    register_file(opened.id);
    return opened;
  }

  void use_page_cache(FileId file) override {
    files_.use_page_cache(file);
    register_file(file);
  }

  [[nodiscard]] std::uint64_t size_of(FileId file) override { return files_.size_of(file); }

  [[nodiscard]] int register_buffers(std::span<const std::span<std::byte>> buffers) override;
  void push(const Piece& piece) override;
  void start() override;
  [[nodiscard]] std::size_t reap(std::span<Outcome> outcomes, bool block) override;

 private:
  void register_file(FileId file);
  void check_enter(int code);
  void prepare(io_uring_sqe* entry, const Piece& piece);
  [[nodiscard]] int registered_index(const Piece& piece) const;

  io_uring ring_;
  FileTable files_;
  std::vector<iovec> registered_;  ///< by address
  bool files_registered_;
  std::size_t in_flight_ = 0;
  int retries_ = 0;        ///< calls that failed since the last one that did not
  int interruptions_ = 0;  ///< those of them that a signal interrupted
};

void UringDriver::register_file(FileId file) {
  if (!files_registered_) return;
  int descriptor = files_.descriptor(file);
  files_registered_ = file.value < static_cast<int>(kFilesMax) &&
                      io_uring_register_files_update(&ring_, static_cast<unsigned>(file.value),
                                                     &descriptor, 1) == 1;
}

int UringDriver::register_buffers(std::span<const std::span<std::byte>> buffers) {
  if (!registered_.empty()) io_uring_unregister_buffers(&ring_);
  registered_.clear();
  for (std::span<std::byte> rest : buffers) {
    while (!rest.empty()) {
      const std::size_t length = std::min(rest.size(), kRegisteredBytesMax);
      registered_.push_back({rest.data(), length});
      rest = rest.subspan(length);
    }
  }
  std::sort(registered_.begin(), registered_.end(),
            [](const iovec& a, const iovec& b) { return a.iov_base < b.iov_base; });
  if (registered_.empty()) return 0;
  const int code = io_uring_register_buffers(&ring_, registered_.data(),
                                             static_cast<unsigned>(registered_.size()));
  if (code != 0) registered_.clear();
  return -code;
}

int UringDriver::registered_index(const Piece& piece) const {
  auto after = std::upper_bound(
      registered_.begin(), registered_.end(), piece.data,
      [](const std::byte* data, const iovec& buffer) { return data < buffer.iov_base; });
  if (after == registered_.begin()) return -1;
  --after;
  const auto* begin = static_cast<const std::byte*>(after->iov_base);
  const bool inside = piece.data + piece.size <= begin + after->iov_len;
  return inside ? static_cast<int>(after - registered_.begin()) : -1;
}

void UringDriver::prepare(io_uring_sqe* entry, const Piece& piece) {
  const int file = files_registered_ ? piece.file.value : files_.descriptor(piece.file);
  const int buffer = piece.kind == Operation::flush ? -1 : registered_index(piece);
  switch (piece.kind) {
    case Operation::read:
      if (buffer >= 0) {
        io_uring_prep_read_fixed(entry, file, piece.data, piece.size, piece.offset, buffer);
      } else {
        io_uring_prep_read(entry, file, piece.data, piece.size, piece.offset);
      }
      break;
    case Operation::write:
      if (buffer >= 0) {
        io_uring_prep_write_fixed(entry, file, piece.data, piece.size, piece.offset, buffer);
      } else {
        io_uring_prep_write(entry, file, piece.data, piece.size, piece.offset);
      }
      break;
    case Operation::flush:
      io_uring_prep_fsync(entry, file, IORING_FSYNC_DATASYNC);
      break;
  }
  if (files_registered_) entry->flags |= IOSQE_FIXED_FILE;
  entry->user_data = piece.slot;
}

void UringDriver::push(const Piece& piece) {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  while (entry == nullptr) {  // Only while a polling kernel thread has yet to take what is queued.
    check_enter(io_uring_submit(&ring_));
    entry = io_uring_get_sqe(&ring_);
  }
  prepare(entry, piece);
  ++in_flight_;
}

/// Checks what entering the kernel returned. Busy or interrupted is no error for a while: what is
/// complete has to be collected, and what is left queued goes with the next call.
void UringDriver::check_enter(int code) {
  if (code >= 0) {
    retries_ = interruptions_ = 0;
    return;
  }
  const bool passes = code == -EINTR
                          ? ++interruptions_ < kInterruptionsMax
                          : (code == -EAGAIN || code == -EBUSY) && ++retries_ < kEnterRetriesMax;
  require(passes, ErrorKind::io, "io_uring_enter failed with {}{}", errno_name(-code),
          code == -EINTR || code == -EAGAIN || code == -EBUSY ? " again and again" : "");
  if (code != -EINTR)
    sleep_us(std::min(kEnterPauseMaxUs, std::int64_t{10} << std::min(retries_, 20)));
}

void UringDriver::start() { check_enter(io_uring_submit(&ring_)); }

std::size_t UringDriver::reap(std::span<Outcome> outcomes, bool block) {
  if (in_flight_ == 0 || outcomes.empty()) return 0;
  std::size_t count = 0;
  while (true) {
    io_uring_cqe* entries[64];
    const unsigned room = static_cast<unsigned>(std::min<std::size_t>(64, outcomes.size() - count));
    const bool has_some = io_uring_cq_ready(&ring_) > 0;
    const int code = has_some              ? 0
                     : block && count == 0 ? io_uring_submit_and_wait(&ring_, 1)
                                           : io_uring_submit_and_get_events(&ring_);
    check_enter(code);
    const unsigned found = io_uring_peek_batch_cqe(&ring_, entries, room);
    for (unsigned i = 0; i < found; ++i) {
      outcomes[count++] = {static_cast<std::uint32_t>(entries[i]->user_data), entries[i]->res};
    }
    io_uring_cq_advance(&ring_, found);
    if (count > 0 || !block) break;
  }
  in_flight_ -= count;
  return count;
}

}  // namespace

std::unique_ptr<Driver> make_uring_driver(const DriverOptions& options, int& refusal) {
  std::vector<unsigned> attempts(kSetupFlags.begin(), kSetupFlags.end());
  if (options.sqpoll) attempts.insert(attempts.begin(), IORING_SETUP_SQPOLL);
  for (const unsigned flags : attempts) {
    io_uring ring{};
    io_uring_params parameters{};
    parameters.flags = flags;
    parameters.sq_thread_idle = 50;  // Milliseconds of polling before it sleeps.
    refusal = -io_uring_queue_init_params(static_cast<unsigned>(options.depth), &ring, &parameters);
    if (refusal == EINVAL) continue;
    if (refusal != 0) break;
    return std::make_unique<UringDriver>(ring,
                                         io_uring_register_files_sparse(&ring, kFilesMax) == 0);
  }
  return nullptr;
}

}  // namespace terrace::io
