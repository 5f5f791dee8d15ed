#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "terrace/core/random.h"
#include "terrace/io/driver.h"

namespace terrace::io {

/// A fault that the disk shows: the next `times` matching calls, after `skip` of them, return
/// `-error`, or with `error` 0 move only `moved` bytes.
struct MemoryFault {
  Operation kind = Operation::read;
  std::string path_part;  ///< calls on files whose path contains it
  std::uint64_t offset_begin = 0;
  std::uint64_t offset_end = UINT64_MAX;  ///< calls that touch [begin, end)
  int skip = 0;
  int times = 1;
  int error = 0;
  std::uint32_t moved = 0;
};

struct MemoryDiskOptions {
  std::uint64_t seed = 1;
  bool reorder = true;             ///< complete in an order drawn from the seed
  double short_probability = 0;    ///< of a transfer that moves only a part, at sectors
  double passing_probability = 0;  ///< of EAGAIN, EINTR or EBUSY
  int delay_max = 0;               ///< rounds that a call may take longer than its successors
};

/// A disk for tests: files in memory, shared by the drivers made on it. It keeps apart what was
/// written and what was flushed. A power cut keeps each unflushed sector or not, by the seed, which
/// drops some writes and tears others; from then on every call fails until `power_on`. Thread-safe.
class MemoryDisk {
 public:
  static constexpr std::uint32_t kSectorBytes = 512;

  explicit MemoryDisk(const MemoryDiskOptions& options)
      : options_(options), random_(options.seed, 0x6469736bULL) {}

  void add_fault(MemoryFault fault);
  /// Lets `calls` more reads, writes and flushes through, then cuts the power.
  void cut_power_after(std::uint64_t calls);
  void power_on();
  void flip_bit(const std::string& path, std::uint64_t bit);
  /// Reads, writes and flushes that were done.
  [[nodiscard]] std::uint64_t calls() const;

 private:
  friend class MemoryDriver;
  struct File {
    std::vector<std::byte> written;
    std::vector<std::byte> durable;
    std::vector<bool> dirty;  ///< by sector
  };

  OpenedFile open(const std::string& path, const OpenOptions& options);
  [[nodiscard]] std::uint64_t size_of(const std::string& path) const;
  [[nodiscard]] std::int32_t run(const std::string& path, const Piece& piece);
  [[nodiscard]] std::optional<std::int32_t> fault_for(const std::string& path, const Piece& piece);
  [[nodiscard]] std::uint64_t draw(std::uint64_t bound);
  [[nodiscard]] bool chance(double probability);
  void cut_power();

  MemoryDiskOptions options_;
  RandomStream random_;
  mutable std::mutex mutex_;
  std::uint64_t draws_ = 0;
  std::map<std::string, File> files_;
  std::vector<MemoryFault> faults_;
  std::uint64_t calls_ = 0;
  std::optional<std::uint64_t> calls_left_;
  bool has_power_ = true;
};

[[nodiscard]] std::unique_ptr<Driver> make_memory_driver(std::shared_ptr<MemoryDisk> disk);

}  // namespace terrace::io
