#pragma once

#include <optional>
#include <string>

namespace terrace::plan {

/// What one rank's machine does a second. An empty figure is not known: a schedule that needs it
/// cannot be predicted.
struct HardwareProfile {
  /// What people read: "measured on node7", "assumed: ...".
  std::string name;
  /// The device's own memory, as a GPU has; missing where it is host RAM, as the host device's is.
  std::optional<double> device_memory_bytes;
  /// Copies between pinned host memory and the device, both ways independent of each other.
  std::optional<double> h2d_bytes_per_second;
  std::optional<double> d2h_bytes_per_second;
  /// What the compute lane moves without arithmetic: bytes written within the device's memory.
  std::optional<double> device_bytes_per_second;
  /// What enters a rank in an all-gather or leaves it in a reduce-scatter.
  std::optional<double> collective_bytes_per_second;
  /// All drives of the rank together, alone, checksums computed.
  std::optional<double> disk_read_bytes_per_second;
  std::optional<double> disk_write_bytes_per_second;
  /// The share of its own rate that reading, and writing, keeps while the other goes on. 0.5: the
  /// drive only switches between the two; 1: neither hampers the other.
  double disk_mixed_factor = 0.5;
  /// The optimizer's traffic with RAM, read and written both counted.
  std::optional<double> optimizer_bytes_per_second;
  /// The share of its own speed that the compute lane, and the optimizer, keeps while the other
  /// works: 1 on a GPU, about 0.5 where both compute on the same cores.
  double shared_cores_factor = 1;
  /// Forward and backward of whole units in each compute dtype, by the model's own count of
  /// floating-point operations.
  std::optional<double> bf16_flops_per_second;
  std::optional<double> fp16_flops_per_second;
  std::optional<double> fp32_flops_per_second;
  /// What a task costs beside its work on every lane but the disks'.
  double task_seconds = 0;
  /// A step's commit: the drives' flush and the manifest.
  double commit_seconds = 0;
};

/// The share that `disk_mixed_factor` means, from rates in bytes/s: reading alone, writing alone,
/// and half reading half writing with both counted. It is at most 1.
///
/// Equal amounts are moved, so the faster one of the two ends first and the slower one finishes
/// alone: with f the share, r the faster rate and w the slower, moving B each way takes
/// B/(f r) + B/w - B/r, which is 2 B over the mixed rate.
[[nodiscard]] double mixed_factor(double read, double write, double mixed);

}  // namespace terrace::plan
