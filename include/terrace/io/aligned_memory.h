#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#include "terrace/core/units.h"

namespace terrace::io {

/// Memory that direct I/O can use: starts at a multiple of 4096 and is as long as asked, rounded up
/// to one. Not initialised. From 2 MiB on it asks for large pages, in which transfers take fewer
/// pieces and looking at the data fewer translations. The owner.
class AlignedMemory {
 public:
  static constexpr std::size_t kAlignment = 4096;
  static constexpr std::size_t kLargePage = 2 * kMiB;

  AlignedMemory() = default;
  explicit AlignedMemory(std::size_t bytes)
      : bytes_(round_up(bytes, kAlignment)), data_(allocate(bytes_)) {
    // Whole ones only, so that nothing beyond changes; a refusal is harmless.
    const std::size_t whole = bytes_ - bytes_ % kLargePage;
    if (whole > 0) ::madvise(data_.get(), whole, MADV_HUGEPAGE);
  }

  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return bytes_; }
  [[nodiscard]] std::span<std::byte> span() const { return {data_.get(), bytes_}; }

 private:
  static std::byte* allocate(std::size_t bytes) {
    // Not aligned_alloc, which wants a size that is a multiple of the alignment.
    void* data = nullptr;
    if (bytes > 0 &&
        ::posix_memalign(&data, bytes < kLargePage ? kAlignment : kLargePage, bytes) != 0) {
      throw std::bad_alloc();
    }
    return static_cast<std::byte*>(data);
  }

  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace terrace::io
