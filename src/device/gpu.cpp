#include "terrace/device/gpu.h"

#include <system_error>

namespace terrace::device {

GpuSearch look_for_gpu(const std::filesystem::path& root) {
  std::error_code unknown;
  if (!std::filesystem::exists(root / "dev/nvidiactl", unknown)) {
    return {false, "no NVIDIA driver is loaded"};
  }
  return {true, "an NVIDIA driver is loaded, but this build computes on the host device only"};
}

}  // namespace terrace::device
