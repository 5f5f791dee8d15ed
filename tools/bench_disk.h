#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "terrace/core/log.h"
#include "terrace/core/units.h"
#include "terrace/io/engine.h"

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
  std::uint64_t flush_every_bytes = 0;  ///< see `io::PageStoreOptions`
};

/// What the repetitions gave.
struct Spread {
  double median = 0;
  double p5 = 0;
  double p95 = 0;
};

struct DriveDescription {
  std::string path;
  std::string device;  ///< "nvme0n1"; empty when it is no local drive
  std::string model;
  bool rotational = false;
  int numa_node = -1;  ///< -1: not known, or only one
};

struct DiskBenchResult {
  DiskBenchOptions options;
  Spread read_gb_per_s;   ///< 10^9 bytes
  Spread write_gb_per_s;  ///< with the commit that ends a step
  Spread mixed_gb_per_s;  ///< half read, half written, both counted; with the commit
  int repetitions = 0;
  std::string engine;  ///< "io_uring" or "threads"
  bool direct = false;
  bool registered = false;
  double read_cpu_seconds_per_gib = 0;
  double write_cpu_seconds_per_gib = 0;
  double mixed_cpu_seconds_per_gib = 0;
  double checksum_cpu_seconds_per_gib = 0;  ///< of which the checksum's
  double flush_seconds = 0;                 ///< median, of a step's commit
  double manifest_seconds = 0;              ///< median, of a step's commit
  std::vector<DriveDescription> drives;
  std::vector<std::string> fallbacks;
  std::string fio_job;  ///< that measures the same
};

/// Writes incompressible state twice (both extents of every page), then reads, writes and mixes in
/// turns. Leaves nothing behind. Errors: `usage`, `does_not_fit`; `io` when a drive fails, or
/// refuses O_DIRECT and `buffered` is off.
[[nodiscard]] DiskBenchResult bench_disk(const DiskBenchOptions& options, Log& log);

/// {"schema": "terrace.bench.disk/1", "read_gb_per_s": {"median", "p5", "p95"}, ...} with the
/// members' names as keys.
[[nodiscard]] std::string to_json(const DiskBenchResult& result);

/// Lines for people, and the fio job.
[[nodiscard]] std::string to_table(const DiskBenchResult& result);

}  // namespace terrace::tools
