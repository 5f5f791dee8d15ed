#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

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

/// A view of `size` elements in device memory, or in host memory that the device's streams address
/// too; owns nothing.
template <class T>
class Span {
 public:
  constexpr Span() = default;
  constexpr Span(Pointer data, std::size_t size) : data_(data), size_(size) {}
  template <class U>
  requires(std::is_same_v<const U, T>)
      // NOLINTNEXTLINE(google-explicit-constructor): a view to write is one to read.
      constexpr Span(Span<U> other)
      : Span(other.data(), other.size()) {}
  /// Of host memory: pinned, or any for the host device and inline streams.
  explicit Span(std::span<T> host)
      : Span(Pointer(const_cast<std::remove_const_t<T>*>(host.data())), host.size()) {}

  [[nodiscard]] constexpr Pointer data() const { return data_; }
  [[nodiscard]] constexpr std::size_t size() const { return size_; }
  [[nodiscard]] constexpr bool empty() const { return size_ == 0; }
  [[nodiscard]] constexpr std::size_t size_bytes() const { return size_ * sizeof(T); }
  [[nodiscard]] constexpr Span subspan(std::size_t first, std::size_t count) const {
    return Span(data_ + first * sizeof(T), count);
  }
  /// The elements as host memory; for what is the host's, and in a task of the host's.
  [[nodiscard]] std::span<T> on_host() const { return {data_.raw<T>(), size_}; }

 private:
  Pointer data_;
  std::size_t size_ = 0;
};

}  // namespace terrace::device
