#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include "terrace/core/inline_function.h"
#include "terrace/device/memory.h"

namespace terrace::device {

/// What a stream runs: kept in place, so that queueing allocates nothing.
using Task = InlineFunction<256>;

/// A counter that only grows: streams and host threads raise it and wait for values of it (a
/// timeline semaphore). One event serves the same task in every step, its value being the step.
/// An event whose producer failed is poisoned: whoever waits for a value not reached before gets
/// the first error. It may be destroyed once a wait for its last value has returned. Thread-safe.
class Event {
 public:
  virtual ~Event() = default;
  /// Raises the counter to `value` from the host.
  virtual void signal(std::uint64_t value) = 0;
  /// Makes all waits for values not yet reached throw `error`; the first call wins.
  virtual void poison(std::exception_ptr error) = 0;
  /// Blocks the calling thread until the counter has reached `value`, or throws the poison.
  virtual void synchronize(std::uint64_t value) = 0;
  [[nodiscard]] virtual bool reached(std::uint64_t value) const = 0;
};

/// A queue of work that runs in order, concurrently with the host and with other streams.
/// Enqueueing calls return at once, in the order given, from one thread at a time (single-owner).
/// When a task throws, the stream keeps the first error, skips what follows, poisons the events
/// recorded after it, and throws at `synchronize`.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Runs a host callable in stream order: an operation on the host device, a callback on others.
  virtual void enqueue(Task task) = 0;
  virtual void copy_to_device(Pointer target, std::span<const std::byte> source) = 0;
  virtual void copy_to_host(std::span<std::byte> target, Pointer source) = 0;
  virtual void copy_on_device(Pointer target, Pointer source, std::size_t bytes) = 0;
  /// Fills with zero bytes.
  virtual void clear(Pointer target, std::size_t bytes) = 0;
  /// Raises `event` to `value` when everything enqueued before is complete.
  virtual void record(Event& event, std::uint64_t value) = 0;
  /// Holds everything enqueued after until `event` has reached `value`.
  virtual void wait(Event& event, std::uint64_t value) = 0;
  /// Blocks until the stream is idle; throws the stream's first error.
  virtual void synchronize() = 0;
};

class Device;

/// Owns bytes of one device's memory, or of pinned host memory: exactly as many as asked for,
/// page-aligned. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, void* data, std::size_t bytes, bool pinned)
      : device_(device), data_(data), bytes_(bytes), pinned_(pinned) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { reset(); }

  [[nodiscard]] std::size_t size() const { return bytes_; }
  /// Device memory only.
  [[nodiscard]] Pointer pointer() const { return Pointer(data_); }
  /// Pinned host memory only.
  [[nodiscard]] std::span<std::byte> host() const {
    return {static_cast<std::byte*>(data_), bytes_};
  }
  void reset() noexcept;

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool pinned_ = false;
};

/// One accelerator, or the host standing in for one. Thread-safe; outlives what it made.
class Device {
 public:
  virtual ~Device() = default;
  /// "host", "NVIDIA H200": for tables and records.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Whether its memory is the host's own, so that a copy between them moves within RAM.
  [[nodiscard]] virtual bool memory_is_host() const = 0;
  [[nodiscard]] virtual std::unique_ptr<Stream> make_stream(const std::string& name) = 0;
  [[nodiscard]] virtual std::unique_ptr<Event> make_event() = 0;

  /// Allocates `bytes` of device memory; `purpose` names it in the error.
  /// Errors: out_of_memory with the purpose and the bytes asked for.
  [[nodiscard]] virtual Buffer allocate(std::size_t bytes, const std::string& purpose) = 0;
  /// Allocates `bytes` of page-aligned host memory from which copies to the device and back are
  /// fastest. A device with memory of its own page-locks it; one whose memory is the host's does
  /// not, as its copies gain nothing by it. What is then registered with io_uring is page-locked by
  /// that, as far as RLIMIT_MEMLOCK allows.
  [[nodiscard]] virtual Buffer allocate_pinned(std::size_t bytes, const std::string& purpose) = 0;

 protected:
  friend class Buffer;
  virtual void free(void* data, std::size_t bytes, bool pinned) noexcept = 0;
};

/// The host as a device: a thread a stream, memory from mmap. Nothing is allocated when work is
/// enqueued; a full queue (4096 entries) makes the caller wait.
[[nodiscard]] std::unique_ptr<Device> make_host_device();

}  // namespace terrace::device
