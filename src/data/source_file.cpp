#include "source_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/data/tokenizer.h"

namespace terrace::data {
namespace {

/// What a read decodes at a time, on the stack: reading allocates nothing.
constexpr std::size_t kDecodeBytes = 16 << 10;

std::uint64_t unsigned_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }

void read_ids(const io::InputFile& file, const TokenLayout& layout, std::int64_t first,
              std::span<std::int32_t> target) {
  std::array<std::uint16_t, kDecodeBytes / 2> narrow;
  std::uint64_t offset = layout.offset + unsigned_of(first) * layout.width;
  if (layout.width == sizeof(std::int32_t)) {
    file.read(offset, std::as_writable_bytes(target));
    return;
  }
  while (!target.empty()) {
    const auto piece = std::span(narrow).first(std::min(narrow.size(), target.size()));
    file.read(offset, std::as_writable_bytes(piece));
    std::ranges::copy(piece, target.begin());
    target = target.subspan(piece.size());
    offset += piece.size_bytes();
  }
}

/// Characters [first, first + target.size()) of a text, without its separator.
void read_characters(const io::InputFile& file, const TextLayout& layout, std::int64_t first,
                     std::span<std::int32_t> target) {
  std::array<std::uint8_t, kDecodeBytes> bytes;
  std::uint64_t offset = layout.offset + unsigned_of(first);
  std::int64_t ahead = 0;  // tokens to drop before the first
  if (!layout.anchors.empty()) {
    offset = layout.anchors[unsigned_of(first / TextLayout::kAnchorTokens)];
    ahead = first % TextLayout::kAnchorTokens;
  }
  LineEnds line_ends;  // an anchor is never the LF of a CRLF, which is no token
  while (!target.empty()) {
    const std::uint64_t wanted = unsigned_of(ahead) + target.size();
    const auto piece =
        std::span(bytes).first(std::min({bytes.size(), wanted, file.size() - offset}));
    require(!piece.empty(), ErrorKind::data,
            "{} ended while it was read; do not change data in use", file.path().string());
    file.read(offset, std::as_writable_bytes(piece));
    offset += piece.size();
    for (const std::uint8_t byte : piece) {
      const auto token = line_ends.next(byte);
      if (!token) continue;
      if (ahead > 0) {
        --ahead;
        continue;
      }
      target.front() = *token;
      target = target.subspan(1);
      if (target.empty()) return;
    }
  }
}

}  // namespace

std::int64_t SourceFile::tokens() const {
  const auto* text = std::get_if<TextLayout>(&layout_);
  return text != nullptr ? text->tokens + 1 : std::get<TokenLayout>(layout_).tokens;
}

void SourceFile::require_unchanged(const io::InputFile& file) const {
  constexpr std::string_view kRemedy = "put back what it was, and do not change data in use";
  const std::scoped_lock lock(unchanged_->mutex);
  const io::FileStamp now = file.stamp();
  if (now == unchanged_->stamp) return;
  require(now.bytes == contents_.bytes, ErrorKind::data,
          "{} was changed since the run began: it had {} bytes and has {}; {}", path_.string(),
          contents_.bytes, now.bytes, kRemedy);
  const io::Fingerprint found = io::fingerprint_file(file);
  require(found == contents_, ErrorKind::data,
          "{} was changed since the run began: of as many bytes, {}, the checksum was {:016x} and "
          "is {:016x}; {}",
          path_.string(), now.bytes, contents_.crc64, found.crc64, kRemedy);
  unchanged_->stamp = now;
}

void SourceFile::read(std::int64_t first, std::span<std::int32_t> target) const {
  std::optional<io::InputFile> opened;
  if (!kept_) opened.emplace(path_);
  const io::InputFile& file = kept_ ? *kept_ : *opened;
  require_unchanged(file);
  const auto* text = std::get_if<TextLayout>(&layout_);
  if (text == nullptr) {
    read_ids(file, std::get<TokenLayout>(layout_), first, target);
    return;
  }
  if (unsigned_of(first) + target.size() > unsigned_of(text->tokens)) {
    target.back() = Tokenizer::kSeparator;
    target = target.first(target.size() - 1);
  }
  if (!target.empty()) read_characters(file, *text, first, target);
}

}  // namespace terrace::data
