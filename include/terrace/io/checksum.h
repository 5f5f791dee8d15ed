#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace terrace::io {

/// CRC-64 (ECMA-182, reflected) of `data`, continued from `previous`: the checksum of two pieces
/// is that of the second continued from that of the first. Computed by ISA-L. Thread-safe.
[[nodiscard]] std::uint64_t crc64(std::span<const std::byte> data, std::uint64_t previous = 0);

/// What identifies the contents of a file: a resumed run must see the same one.
struct Fingerprint {
  std::uint64_t bytes = 0;
  std::uint64_t crc64 = 0;
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

class InputFile;

/// Reads the whole file. Errors: as `InputFile`.
[[nodiscard]] Fingerprint fingerprint_file(const InputFile& file);
[[nodiscard]] Fingerprint fingerprint_file(const std::filesystem::path& path);

}  // namespace terrace::io
