#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "terrace/device/device.h"

// What the devices share whose memory is the host's.

namespace terrace::device {

/// Anonymous pages for `bytes`; `purpose` names them in the error. Errors: out_of_memory.
[[nodiscard]] void* map_pages(std::size_t bytes, const std::string& purpose);
void unmap_pages(void* data, std::size_t bytes) noexcept;

/// A stream on which copying is a task like any other.
class HostMemoryStream : public Stream {
 public:
  void copy_to_device(Pointer target, std::span<const std::byte> source) override {
    enqueue([=] { std::memcpy(target.raw(), source.data(), source.size()); });
  }
  void copy_to_host(std::span<std::byte> target, Pointer source) override {
    enqueue([=] { std::memcpy(target.data(), source.raw(), target.size()); });
  }
  void copy_on_device(Pointer target, Pointer source, std::size_t bytes) override {
    enqueue([=] { std::memmove(target.raw(), source.raw(), bytes); });
  }
  void clear(Pointer target, std::size_t bytes) override {
    enqueue([=] { std::memset(target.raw(), 0, bytes); });
  }
};

/// A device whose buffers, pinned or not, are pages of the host.
class HostMemoryDevice : public Device {
 public:
  [[nodiscard]] bool memory_is_host() const override { return true; }
  [[nodiscard]] Buffer allocate(std::size_t bytes, const std::string& purpose) override {
    return {this, map_pages(bytes, purpose), bytes, false};
  }
  [[nodiscard]] Buffer allocate_pinned(std::size_t bytes, const std::string& purpose) override {
    return {this, map_pages(bytes, purpose), bytes, true};
  }

 protected:
  void free(void* data, std::size_t bytes, bool /*pinned*/) noexcept override {
    unmap_pages(data, bytes);
  }
};

}  // namespace terrace::device
