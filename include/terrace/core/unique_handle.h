#pragma once

#include <utility>

namespace terrace {

/// Owns one C handle. `Traits` has `Handle`, `empty()` and `destroy(Handle) noexcept`.
template <class Traits>
class UniqueHandle {
 public:
  using Handle = typename Traits::Handle;

  UniqueHandle() = default;
  explicit UniqueHandle(Handle handle) : handle_(handle) {}
  UniqueHandle(UniqueHandle&& other) noexcept
      : handle_(std::exchange(other.handle_, Traits::empty())) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, Traits::empty());
    }
    return *this;
  }
  UniqueHandle(const UniqueHandle&) = delete;
  UniqueHandle& operator=(const UniqueHandle&) = delete;
  ~UniqueHandle() { reset(); }

  [[nodiscard]] Handle get() const { return handle_; }
  explicit operator bool() const { return handle_ != Traits::empty(); }
  [[nodiscard]] Handle release() { return std::exchange(handle_, Traits::empty()); }
  void reset() noexcept {
    if (handle_ != Traits::empty()) Traits::destroy(std::exchange(handle_, Traits::empty()));
  }

 private:
  Handle handle_ = Traits::empty();
};

/// An open file descriptor.
struct FileDescriptorTraits {
  using Handle = int;
  static constexpr int empty() { return -1; }
  static void destroy(int descriptor) noexcept;
};
using FileDescriptor = UniqueHandle<FileDescriptorTraits>;

}  // namespace terrace
