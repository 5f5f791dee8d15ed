#include "terrace/core/container.h"

#include <fmt/core.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "terrace/core/units.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<double> read_number(const fs::path& path) {
  const auto line = read_line(path);
  double value = 0;
  if (!line) return std::nullopt;
  const auto [end, code] = std::from_chars(line->data(), line->data() + line->size(), value);
  if (code != std::errc()) return std::nullopt;  // "max"
  return value;
}

/// The value of `key` in a file of "key value" lines, 0 when absent.
double read_field(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  std::string name;
  double value = 0;
  while (file >> name >> value) {
    if (name == key) return value;
  }
  return 0;
}

void tighten(std::optional<Limit>& limit, double value, const fs::path& source) {
  if (!limit || value < limit->value) limit = Limit{value, source.string()};
}

/// The folders from `group` up to `mount`, innermost first.
std::vector<fs::path> up_the_tree(const fs::path& mount, std::string_view group) {
  std::vector<fs::path> folders;
  fs::path relative = fs::path(group).relative_path();
  for (; !relative.empty(); relative = relative.parent_path()) folders.push_back(mount / relative);
  folders.push_back(mount);
  return folders;
}

void read_memory(ContainerLimits& limits, const fs::path& limit_file, const fs::path& used_file,
                 const fs::path& stat_file, std::string_view cache_key) {
  const auto limit = read_number(limit_file);
  // cgroup v1 writes "no limit" as a number near 2^63.
  if (!limit || *limit >= 0x1p60) return;
  if (limits.memory_bytes && *limit >= limits.memory_bytes->value) return;
  tighten(limits.memory_bytes, *limit, limit_file);
  const double used = read_number(used_file).value_or(0) - read_field(stat_file, cache_key);
  limits.memory_used_bytes = static_cast<std::uint64_t>(std::max(used, 0.0));
}

void read_v2(ContainerLimits& limits, const fs::path& folder) {
  if (const auto line = read_line(folder / "cpu.max")) {
    std::istringstream fields(*line);
    double quota = 0;
    double period = 0;
    if (fields >> quota >> period && period > 0) {
      tighten(limits.cpus, quota / period, folder / "cpu.max");
    }
  }
  read_memory(limits, folder / "memory.max", folder / "memory.current", folder / "memory.stat",
              "inactive_file");
}

void read_v1_cpu(ContainerLimits& limits, const fs::path& folder) {
  const auto quota = read_number(folder / "cpu.cfs_quota_us");
  const auto period = read_number(folder / "cpu.cfs_period_us");
  if (quota && period && *quota > 0 && *period > 0) {
    tighten(limits.cpus, *quota / *period, folder / "cpu.cfs_quota_us");
  }
}

using SystemInfo = struct sysinfo;

/// `key` of /proc/meminfo, or, where there is no /proc, what the kernel says itself.
Limit host_memory(const fs::path& root, std::string_view key, unsigned long SystemInfo::*member) {
  std::ifstream file(root / "proc/meminfo");
  std::string name;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    double kib = 0;
    if (fields >> name >> kib && name == fmt::format("{}:", key)) {
      return {kib * 1024, fmt::format("{} of the host", key)};
    }
  }
  SystemInfo found{};
  (void)::sysinfo(&found);
  return {static_cast<double>(found.*member) * found.mem_unit,
          fmt::format("{} of the host, by sysinfo: {} cannot be read", key,
                      (root / "proc/meminfo").string())};
}

}  // namespace

ContainerLimits read_container_limits(const fs::path& root) {
  ContainerLimits limits;
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  // Without /proc the group is not known; a container sees its own as the root.
  if (!groups) read_v2(limits, mount);
  std::string line;  // "hierarchy:controllers:path"
  while (std::getline(groups, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      for (const fs::path& folder : up_the_tree(mount, path)) read_v2(limits, folder);
      continue;
    }
    if (controllers.find(",cpu,") != std::string::npos) {
      for (const fs::path& folder : up_the_tree(mount / "cpu", path)) read_v1_cpu(limits, folder);
    }
    if (controllers.find(",memory,") != std::string::npos) {
      for (const fs::path& folder : up_the_tree(mount / "memory", path)) {
        read_memory(limits, folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes",
                    folder / "memory.stat", "total_inactive_file");
      }
    }
  }
  return limits;
}

Limit available_memory(const fs::path& root) {
  // What sysinfo calls free leaves out the page cache, most of which could be had too.
  Limit host = host_memory(root, "MemAvailable", &SystemInfo::freeram);
  const ContainerLimits limits = read_container_limits(root);
  if (!limits.memory_bytes) return host;
  const double left =
      std::max(0.0, limits.memory_bytes->value - static_cast<double>(limits.memory_used_bytes));
  return left < host.value ? Limit{left, limits.memory_bytes->source + " less its use"} : host;
}

Limit total_memory(const fs::path& root) {
  Limit host = host_memory(root, "MemTotal", &SystemInfo::totalram);
  const ContainerLimits limits = read_container_limits(root);
  if (limits.memory_bytes && limits.memory_bytes->value < host.value) return *limits.memory_bytes;
  return host;
}

}  // namespace terrace
