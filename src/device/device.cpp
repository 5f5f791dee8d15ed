#include "terrace/device/device.h"

#include <utility>

namespace terrace::device {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    device_ = std::exchange(other.device_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    pinned_ = std::exchange(other.pinned_, false);
  }
  return *this;
}

void Buffer::reset() noexcept {
  if (data_ != nullptr) device_->free(std::exchange(data_, nullptr), bytes_, pinned_);
  bytes_ = 0;
}

}  // namespace terrace::device
