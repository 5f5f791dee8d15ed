#pragma once

#include <filesystem>
#include <string>

namespace terrace::device {

/// What became of the search for a GPU.
struct GpuSearch {
  bool found = false;
  std::string reason;  ///< why none is used: a clause, for tables and the log
};

/// Looks for a GPU's driver in the file system below `root`; nothing is loaded or asked. This build
/// computes on the host device, so that one that is found is not used.
[[nodiscard]] GpuSearch look_for_gpu(const std::filesystem::path& root = "/");

}  // namespace terrace::device
