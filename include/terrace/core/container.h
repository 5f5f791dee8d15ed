#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace terrace {

/// A limit and the file it was read from.
struct Limit {
  double value = 0;
  std::string source;
};

/// What the container (cgroup v1 or v2, the tightest limit from this process's group up to the
/// root) allows. Absent when unlimited.
struct ContainerLimits {
  std::optional<Limit> cpus;          ///< CPUs' worth of time, such as 1.5
  std::optional<Limit> memory_bytes;  ///< hard limit
  /// Bytes in use in the limiting group, less page cache that can be dropped.
  std::uint64_t memory_used_bytes = 0;
};

/// Reads the limits. `root` replaces "/" in tests: below it lie `proc/self/cgroup` and
/// `sys/fs/cgroup`.
[[nodiscard]] ContainerLimits read_container_limits(const std::filesystem::path& root = "/");

/// Memory this process may still take: the container's limit less its use, or the host's available
/// memory, whichever is less; `source` says which.
[[nodiscard]] Limit available_memory(const std::filesystem::path& root = "/");

/// The whole of which `80%` of memory is a share: the container's limit, or the host's memory.
[[nodiscard]] Limit total_memory(const std::filesystem::path& root = "/");

}  // namespace terrace
