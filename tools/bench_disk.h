#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "drive.h"
#include "spread.h"
#include "terrace/core/log.h"
#include "terrace/core/units.h"
#include "terrace/device/device.h"
#include "terrace/io/engine.h"
#include "terrace/train/watch.h"

namespace terrace::tools {

/// `terrace bench disk`: a page store on the drives, as training uses it, checksums on.
struct DiskBenchOptions {
  std::vector<std::filesystem::path> paths;  ///< folders, one a drive
  std::uint64_t size = kGiB;   ///< bytes of state; twice that is reserved on the drives together
  std::uint64_t block = kMiB;  ///< of one transfer; a multiple of 256 KiB
  int depth = 32;              ///< transfers in flight a drive
  double runtime_seconds = 0;  ///< repeat until this much time was measured, and `repetitions`
  int repetitions = 5;
  io::DriverKind driver = io::DriverKind::uring;
  bool sqpoll = false;
  bool buffered = false;  ///< measure through the page cache where O_DIRECT is refused
  bool raw = false;       ///< measure the engine alone too, in turns; reserves twice as much
  std::uint64_t flush_every_bytes = 0;  ///< see `io::PageStoreOptions`
};

/// Moving all of the state once.
enum class Pass { read, write, mixed };  // mixed: half is read and half is written
inline constexpr std::array kPasses = {Pass::read, Pass::write, Pass::mixed};

/// What moves it.
enum class Way {
  store,   ///< the page store; passes that write end with the commit of a step
  raw,     ///< the engine alone; passes that write end with one flush
  looked,  ///< the same, and each byte is looked at once by a plain sum: the least a checksum costs
};

/// One pass.
struct PassTimes {
  double seconds = 0;           ///< in all
  double flush_seconds = 0;     ///< of which the drives' flush
  double manifest_seconds = 0;  ///< of which the manifest's writing
  double cpu_seconds = 0;       ///< of the whole process
};

/// All repetitions of one way, by pass, in the order in which they were made.
using WayTimes = std::array<std::vector<PassTimes>, kPasses.size()>;

struct DiskBenchResult {
  DiskBenchOptions options;
  std::uint64_t bytes = 0;        ///< that a pass moves
  std::map<Way, WayTimes> times;  ///< without `options.raw` of the store only
  std::string engine;             ///< "io_uring" or "threads"
  bool direct = false;
  bool registered = false;
  double checksum_cpu_seconds_per_gib = 0;  ///< of the checksum by itself
  std::vector<DriveDescription> drives;
  std::vector<std::string> fallbacks;

  [[nodiscard]] int repetitions() const {
    return static_cast<int>(times.at(Way::store).front().size());
  }
  /// 10^9 bytes a second, both directions counted.
  [[nodiscard]] Spread gb_per_s(Way way, Pass pass) const;
  /// Medians.
  [[nodiscard]] double cpu_seconds_per_gib(Way way, Pass pass) const;
  [[nodiscard]] double median(Way way, Pass pass, double PassTimes::*figure) const;
};

/// Writes incompressible state twice (both extents of every page), then reads, writes and mixes in
/// turns, each pass by one way after the other and the next time in the opposite order. Leaves
/// nothing behind. Errors: `usage`, `does_not_fit`; `io` when a drive fails, or refuses O_DIRECT
/// and `buffered` is off.
[[nodiscard]] DiskBenchResult bench_disk(const DiskBenchOptions& options, device::Device& device,
                                         train::Watch& watch, Log& log);

/// {"schema": "terrace.bench.disk/1", "read_gb_per_s": {"median", "p5", "p95"}, ...} with the
/// members' names as keys; with `options.raw` also what the other ways gave, and for each pass the
/// ratios of the store's time to the engine's alone, repetition by repetition.
[[nodiscard]] std::string to_json(const DiskBenchResult& result);

/// Lines for people, and the fio job that measures the same.
[[nodiscard]] std::string to_table(const DiskBenchResult& result);

}  // namespace terrace::tools
