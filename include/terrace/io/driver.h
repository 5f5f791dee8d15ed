#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "terrace/core/progress.h"
#include "terrace/io/request.h"

namespace terrace::io {

/// What one system call does: a part of a request, at most `kPieceBytesMax` long.
struct Piece {
  Operation kind = Operation::read;
  FileId file;
  std::uint64_t offset = 0;
  std::byte* data = nullptr;
  std::uint32_t size = 0;
  std::uint32_t slot = 0;  ///< the engine's; comes back in the outcome
};

/// Linux moves no more in one call (2,147,479,552 bytes); we stay at a round number below.
inline constexpr std::uint64_t kPieceBytesMax = 1ULL << 30;

/// What the call returned: bytes moved, perhaps fewer than asked, or a negative errno value.
struct Outcome {
  std::uint32_t slot = 0;
  std::int32_t result = 0;
};

struct OpenOptions {
  /// Make the file and give it `bytes` bytes of reserved space; else it must exist.
  bool create = false;
  std::uint64_t bytes = 0;
  /// Bypass the page cache where the file system can.
  bool direct = true;
  /// Called between pieces of the space that is reserved.
  ProgressFunction progress = {};
};

struct OpenedFile {
  FileId id;
  std::uint64_t bytes = 0;
  bool direct = false;
  /// errno of O_DIRECT's refusal, when it was asked for and refused.
  int direct_error = 0;
  /// What addresses, and offsets and lengths, must be multiples of (1 when not direct).
  std::uint32_t memory_alignment = 1;
  std::uint32_t offset_alignment = 1;
};

/// The lowest seam to the disks: queues pieces, and tells what each call returned, in any order. It
/// repairs nothing; `Engine` does, above every driver in the same way. Single-owner.
class Driver {
 public:
  Driver() = default;
  virtual ~Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// "io_uring", "threads", "memory", "null".
  [[nodiscard]] virtual std::string_view name() const = 0;

  /// Opens for reading and writing. Errors: kind `io` with the path and the errno's name;
  /// `does_not_fit` when the space cannot be reserved.
  virtual OpenedFile open(const std::filesystem::path& path, const OpenOptions& options) = 0;
  /// Opens the file anew through the page cache, under the same id. Nothing is in flight on it.
  virtual void use_page_cache(FileId file) = 0;
  /// Bytes that the file has now.
  [[nodiscard]] virtual std::uint64_t size_of(FileId file) = 0;

  /// Lets the kernel pin `buffers` once instead of at each call; replaces earlier ones. Nothing is
  /// in flight. Returns 0, or the errno of the refusal (transfers then work unregistered).
  [[nodiscard]] virtual int register_buffers(std::span<const std::span<std::byte>> buffers) = 0;

  /// Queues a piece. At most `depth` (given when it was made) are queued or in flight.
  virtual void push(const Piece& piece) = 0;
  /// Starts what is queued.
  virtual void start() = 0;
  /// Collects outcomes of what was started; with `block` at least one, unless none is in flight.
  [[nodiscard]] virtual std::size_t reap(std::span<Outcome> outcomes, bool block) = 0;
};

struct DriverOptions {
  /// Pieces that may be in flight, all files together.
  int depth = 128;
  /// Let a kernel thread poll the submission queue (io_uring only).
  bool sqpoll = false;
};

/// io_uring with registered files and buffers. Returns null and sets `refusal` to the errno where
/// the kernel or the container forbids it.
[[nodiscard]] std::unique_ptr<Driver> make_uring_driver(const DriverOptions& options, int& refusal);

/// A pool of threads that call pread, pwrite and fdatasync.
[[nodiscard]] std::unique_ptr<Driver> make_thread_driver(const DriverOptions& options);

/// Completes everything at once, moves nothing: what the layers above cost by themselves.
[[nodiscard]] std::unique_ptr<Driver> make_null_driver(const DriverOptions& options);

}  // namespace terrace::io
