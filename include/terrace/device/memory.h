#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace::device {

/// An address in device memory. It cannot be dereferenced: on a GPU the host may not, and on the
/// host device nobody should without saying so (`raw`). Arithmetic is in bytes.
class Pointer {
 public:
  constexpr Pointer() = default;
  constexpr explicit Pointer(void* raw) : raw_(static_cast<std::byte*>(raw)) {}

  /// The bare address, for kernels and copies of the device it belongs to.
  template <class T = std::byte>
  [[nodiscard]] T* raw() const {
    return reinterpret_cast<T*>(raw_);
  }
  [[nodiscard]] constexpr Pointer operator+(std::uint64_t bytes) const {
    return Pointer(raw_ + bytes);
  }
  [[nodiscard]] constexpr explicit operator bool() const { return raw_ != nullptr; }
  friend constexpr bool operator==(Pointer, Pointer) = default;

 private:
  std::byte* raw_ = nullptr;
};

/// A view of `size` elements in device memory; owns nothing.
template <class T>
class Span {
 public:
  constexpr Span() = default;
  constexpr Span(Pointer data, std::size_t size) : data_(data), size_(size) {}

  [[nodiscard]] constexpr Pointer data() const { return data_; }
  [[nodiscard]] constexpr std::size_t size() const { return size_; }
  [[nodiscard]] constexpr std::size_t size_bytes() const { return size_ * sizeof(T); }
  [[nodiscard]] constexpr Span subspan(std::size_t first, std::size_t count) const {
    return Span(data_ + first * sizeof(T), count);
  }
  /// The elements as host memory; only valid where the device's memory is the host's.
  [[nodiscard]] std::span<T> on_host() const { return {data_.raw<T>(), size_}; }

 private:
  Pointer data_;
  std::size_t size_ = 0;
};

}  // namespace terrace::device
