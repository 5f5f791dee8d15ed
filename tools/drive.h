#pragma once

#include <filesystem>
#include <string>

namespace terrace::tools {

struct DriveDescription {
  std::string path;
  std::string device;  ///< "nvme0n1"; empty when it is no local drive
  std::string model;
  bool rotational = false;
  int numa_node = -1;  ///< -1: not known, or only one
};

/// What the kernel says of the drive below `path`; what it does not say stays as it is above.
[[nodiscard]] DriveDescription describe_drive(const std::filesystem::path& path);

}  // namespace terrace::tools
