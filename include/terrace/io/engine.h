#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/log.h"
#include "terrace/io/driver.h"
#include "terrace/io/request.h"

namespace terrace::io {

enum class DriverKind : std::uint8_t {
  uring,    ///< io_uring; falls back to `threads` where it is forbidden
  threads,  ///< pread and pwrite
};

/// "io_uring" or "threads"; the inverse accepts "uring", "io_uring", "thread" and "threads".
[[nodiscard]] std::optional<DriverKind> driver_kind_named(std::string_view name);

struct EngineOptions {
  DriverKind driver = DriverKind::uring;
  /// Pieces in flight a file: each has a queue of its own, and a slow drive fills only its own.
  int depth = 32;
  /// Files that may be opened.
  int files_max = 8;
  /// Requests taken and not yet returned.
  std::size_t requests_max = 256;
  /// A longer request is moved in pieces of this size, at once; a multiple of 4096.
  std::uint64_t piece_bytes = std::uint64_t{1} << 20;
  bool direct = true;
  bool sqpoll = false;
};

/// What the engine found it can do; fall-backs taken later change it.
struct Capabilities {
  std::string_view driver;
  bool direct = true;       ///< every file opened so far bypasses the page cache
  bool registered = false;  ///< the last `register_buffers` was granted
};

/// Requests in, completions out. Every result of the driver is read: short transfers continue from
/// an aligned point, EAGAIN, EINTR and EBUSY are retried a bounded number of times, the end of the
/// file where data should be is an error, and so is all else, with path, offset, length, expected,
/// found and the errno's name. O_DIRECT that is refused, at open or only at the first transfer,
/// falls back to the page cache for that file, and the log is told once.
///
/// Requests on one file start in order and complete in any. Nothing is allocated between `open` and
/// destruction, except for messages of failures. Single-owner: one thread at a time, which may be
/// another than the one that made it. The destructor waits for what is in flight, on any thread.
///
/// When the driver's queue itself fails, `submit` and `wait` throw, kind `io`. By then everything
/// in flight has come to rest, or nothing was heard of it for seconds; the engine takes no more.
class Engine {
 public:
  /// `driver` was made with a depth of at least `driver_depth(options)`. `log` outlives the engine.
  Engine(std::unique_ptr<Driver> driver, const EngineOptions& options, Log& log);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// As `Driver::open`.
  OpenedFile open(const std::filesystem::path& path, const OpenOptions& options);

  /// Takes requests from the front of `requests`, as many as there is room for, starts them and
  /// returns how many were taken. Errors: kind `internal`, when a request on a direct file is not
  /// aligned as `open` said.
  [[nodiscard]] std::size_t submit(std::span<const Request> requests);
  /// Room for more requests.
  [[nodiscard]] std::size_t room() const { return free_requests_.size(); }

  /// Returns completions, at least min(`min`, `in_flight()`, completions.size()).
  [[nodiscard]] std::size_t wait(std::span<Completion> completions, std::size_t min);
  /// Requests taken whose completion has not been returned.
  [[nodiscard]] std::size_t in_flight() const { return requests_.size() - free_requests_.size(); }

  /// Gives up every request in flight: none starts or retries anything more, and each completes
  /// with ECANCELED or what it ended with. `wait` still has to return them.
  void cancel();

  /// Asks that `buffers` be pinned once; without it each transfer pins its own memory. Replaces
  /// earlier ones. A refusal is logged once and costs speed only. Nothing may be in flight.
  void register_buffers(std::span<const std::span<std::byte>> buffers);

  [[nodiscard]] Capabilities capabilities() const;

  /// Pieces in flight altogether: `depth` a file, up to what one ring of the kernel holds
  /// (IORING_MAX_ENTRIES in io_uring/io_uring.h of Linux); beyond that, files share.
  [[nodiscard]] static int driver_depth(const EngineOptions& options) {
    constexpr std::int64_t kRingEntriesMax = 32768;
    return static_cast<int>(
        std::min(std::int64_t{options.depth} * options.files_max, kRingEntriesMax));
  }

 private:
  static constexpr int kNone = -1;

  /// A first-in, first-out list through the `next` members of slots.
  struct List {
    int head = kNone;
    int tail = kNone;
  };
  struct RequestSlot {
    Request request;
    std::uint64_t started = 0;  ///< bytes of it given to pieces
    bool all_started = true;
    int outstanding = 0;  ///< pieces not yet done
    int error = 0;
    std::string message;
    int next = kNone;
  };
  struct PieceSlot {
    Piece piece;  ///< what is left of it
    int request = kNone;
    int retries = 0;
    int next = kNone;
  };
  struct File {
    std::filesystem::path path{};
    OpenedFile opened{};
    int in_flight = 0;
    bool leaving_direct = false;  ///< reopens through the page cache once nothing is in flight
    List waiting{};               ///< requests with bytes to start
    List again{};                 ///< pieces to issue once more
  };

  template <class Slot>
  static void append(std::vector<Slot>& slots, List& list, int index);
  template <class Slot>
  static int take(std::vector<Slot>& slots, List& list);

  void check_alignment(const Request& request) const;
  /// Hands the driver what there is room for and starts it.
  void pump();
  [[nodiscard]] bool pump(File& file);
  [[nodiscard]] int next_piece(File& file);
  void settle(const Outcome& outcome);
  void settle_moved(File& file, int index, std::uint64_t moved);
  void settle_error(File& file, int index, int code);
  void retry(File& file, int index, int code);
  void leave_direct(File& file, int code, std::string_view when);
  void fail_request(File& file, const PieceSlot& slot, int code, std::string_view found);
  void release_piece(int index);
  void finish_if_done(int request);
  [[nodiscard]] std::size_t take_ready(std::span<Completion> completions);
  /// Settles what the driver has.
  void collect(bool block);
  /// Gives up every request once the driver's queue has failed, and waits for what is in flight as
  /// long as it is heard of.
  void come_to_rest();

  std::unique_ptr<Driver> driver_;
  EngineOptions options_;
  Log& log_;
  std::vector<File> files_;
  std::vector<RequestSlot> requests_;
  std::vector<PieceSlot> pieces_;
  std::vector<int> free_requests_;
  std::vector<int> free_pieces_;
  List ready_;
  int pieces_in_flight_ = 0;
  std::int64_t pause_us_ = 0;  ///< to wait before a device that is busy is asked again
  bool registered_ = false;
  bool broken_ = false;  ///< the driver's queue has failed
  std::vector<Outcome> outcomes_;
};

/// The engine that `options` ask for, or the next best that this machine allows; each step down is
/// logged once with the line that would mend it.
[[nodiscard]] std::unique_ptr<Engine> make_engine(const EngineOptions& options, Log& log);

/// Moves one request and waits for it; nothing else is in flight on `engine`. Errors: kind `io`.
void transfer(Engine& engine, const Request& request);

}  // namespace terrace::io
