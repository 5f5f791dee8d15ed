#include "terrace/io/checksum.h"

#include <isa-l.h>

#include <algorithm>
#include <memory>

#include "terrace/io/file.h"

namespace terrace::io {

std::uint64_t crc64(std::span<const std::byte> data, std::uint64_t previous) {
  return crc64_ecma_refl(previous, reinterpret_cast<const unsigned char*>(data.data()),
                         data.size());
}

Fingerprint fingerprint_file(const std::filesystem::path& path) {
  constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
  const InputFile file(path);
  const auto piece = std::make_unique_for_overwrite<std::byte[]>(kPieceBytes);
  Fingerprint result{.bytes = file.size()};
  for (std::uint64_t offset = 0; offset < file.size(); offset += kPieceBytes) {
    const std::span target(piece.get(), std::min<std::uint64_t>(kPieceBytes, file.size() - offset));
    file.read(offset, target);
    result.crc64 = crc64(target, result.crc64);
  }
  return result;
}

}  // namespace terrace::io
