#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#include "terrace/core/units.h"

namespace terrace::io {

/// Memory that direct I/O can use: starts at a multiple of 4096 and is as long as asked, rounded up
/// to one. Not initialised. The owner.
class AlignedMemory {
 public:
  static constexpr std::size_t kAlignment = 4096;

  AlignedMemory() = default;
  explicit AlignedMemory(std::size_t bytes)
      : bytes_(round_up(bytes, kAlignment)),
        data_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes_))) {
    if (data_ == nullptr && bytes_ > 0) throw std::bad_alloc();
  }

  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return bytes_; }
  [[nodiscard]] std::span<std::byte> span() const { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace terrace::io
