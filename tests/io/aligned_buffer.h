#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

namespace terrace::testing {

/// Zeroed memory at a multiple of 4096, as direct I/O needs it.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::size_t bytes)
      : bytes_((bytes + 4095) / 4096 * 4096),
        data_(static_cast<std::byte*>(std::aligned_alloc(4096, bytes_ == 0 ? 4096 : bytes_))) {
    for (std::byte& byte : span()) byte = std::byte{0};
  }

  [[nodiscard]] std::span<std::byte> span() const { return {data_.get(), bytes_}; }
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace terrace::testing
