#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "terrace/device/device.h"

namespace terrace::kernels {

/// Device memory with `shift` bytes before it, so that alignment can be varied. Read and written
/// through a stream, which has nothing else to do then.
class DeviceBytes {
 public:
  DeviceBytes(device::Device& device, device::Stream& stream, std::size_t bytes,
              std::size_t shift = 0)
      : stream_(&stream),
        bytes_(bytes),
        shift_(shift),
        buffer_(device.allocate(bytes + shift + 64, "a test's memory")) {
    write_bits(std::string(bytes, '\xff'));  // what is not written stays NaN
  }

  [[nodiscard]] device::Pointer pointer() const { return buffer_.pointer() + shift_; }
  [[nodiscard]] device::Span<std::byte> span() const { return {pointer(), bytes_}; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  void read(std::span<std::byte> target) const {
    stream_->copy_to_host(target, pointer());
    stream_->synchronize();
  }
  void write(std::span<const std::byte> source) const {
    ASSERT_LE(source.size(), bytes_);
    stream_->copy_to_device(pointer(), source);
    stream_->synchronize();
  }
  [[nodiscard]] std::string bits() const {
    std::string bits(bytes_, '\0');
    read(std::as_writable_bytes(std::span(bits)));
    return bits;
  }
  void write_bits(const std::string& bits) const { write(std::as_bytes(std::span(bits))); }

 private:
  device::Stream* stream_;
  std::size_t bytes_;
  std::size_t shift_;
  device::Buffer buffer_;
};

}  // namespace terrace::kernels
