#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "terrace/core/error.h"

namespace terrace::io {

/// Lays numbers (little-endian, as every machine we run on has them) and text end to end into
/// memory that is large enough by the caller's reckoning.
class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> target) : target_(target) {}

  template <class T>
  requires std::is_arithmetic_v<T>
  void put(T value) { put_bytes(std::as_bytes(std::span(&value, 1))); }
  void put_text(std::string_view text) {
    put(static_cast<std::uint64_t>(text.size()));
    put_bytes(std::as_bytes(std::span(text)));
  }
  void put_bytes(std::span<const std::byte> bytes) {
    require(bytes.size() <= target_.size() - position_, ErrorKind::internal,
            "a record of {} bytes is too small for what it should hold", target_.size());
    if (!bytes.empty()) std::memcpy(target_.data() + position_, bytes.data(), bytes.size());
    position_ += bytes.size();
  }
  [[nodiscard]] std::size_t position() const { return position_; }

 private:
  std::span<std::byte> target_;
  std::size_t position_ = 0;
};

/// Reads them back. Errors: `corrupt`, naming `what`, when the record is too short.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> source, std::string_view what)
      : source_(source), what_(what) {}

  template <class T>
  requires std::is_arithmetic_v<T>
  [[nodiscard]] T get() {
    T value{};
    std::memcpy(&value, get_bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  [[nodiscard]] std::string get_text() {
    const auto bytes = get_bytes(get<std::uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  [[nodiscard]] std::span<const std::byte> get_bytes(std::uint64_t count) {
    require(count <= source_.size() - position_, ErrorKind::corrupt,
            "{} is damaged: {} bytes are expected at byte {}, but it ends at {}", what_, count,
            position_, source_.size());
    const auto bytes = source_.subspan(position_, count);
    position_ += count;
    return bytes;
  }

 private:
  std::span<const std::byte> source_;
  std::string_view what_;
  std::size_t position_ = 0;
};

}  // namespace terrace::io
