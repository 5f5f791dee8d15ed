#include "drive.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstdlib>
#include <fstream>

namespace terrace::tools {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

}  // namespace

DriveDescription describe_drive(const fs::path& path) {
  DriveDescription drive{.path = path.string(), .device = "", .model = ""};
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return drive;
  std::error_code code;
  fs::path device = fs::canonical(
      fmt::format("/sys/dev/block/{}:{}", major(status.st_dev), minor(status.st_dev)), code);
  if (code) return drive;
  if (fs::exists(device / "partition")) device = device.parent_path();
  drive.device = device.filename().string();
  drive.model = first_line(device / "device/model");
  drive.rotational = first_line(device / "queue/rotational") == "1";
  for (fs::path at = fs::canonical(device / "device", code); !code && at.has_relative_path();
       at = at.parent_path()) {
    const std::string node = first_line(at / "numa_node");
    if (node.empty()) continue;
    drive.numa_node = std::atoi(node.c_str());
    break;
  }
  return drive;
}

}  // namespace terrace::tools
