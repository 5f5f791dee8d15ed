#include "text_scan.h"

#include <cstring>
#include <utility>

#include "terrace/core/units.h"

namespace terrace::data {
namespace {

std::optional<std::size_t> find(std::span<const std::uint8_t> bytes, std::uint8_t value) {
  if (bytes.empty()) return std::nullopt;
  const void* found = std::memchr(bytes.data(), value, bytes.size());
  if (found == nullptr) return std::nullopt;
  return static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - bytes.data());
}

/// How many bytes at the front are ASCII, rounded down to whole words.
std::size_t ascii_prefix(std::span<const std::uint8_t> bytes) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  std::size_t length = 0;
  for (std::uint64_t word = 0; length + sizeof word <= bytes.size(); length += sizeof word) {
    std::memcpy(&word, bytes.data() + length, sizeof word);
    if ((word & kHighBits) != 0) break;
  }
  return length;
}

}  // namespace

void Utf8Check::start_character(std::uint8_t byte) {
  low_ = 0x80;
  high_ = 0xBF;
  if (byte < 0x80) {
    return;
  } else if (byte >= 0xC2 && byte <= 0xDF) {
    pending_ = 1;
  } else if (byte >= 0xE0 && byte <= 0xEF) {
    pending_ = 2;
    if (byte == 0xE0) low_ = 0xA0;
    if (byte == 0xED) high_ = 0x9F;
  } else if (byte >= 0xF0 && byte <= 0xF4) {
    pending_ = 3;
    if (byte == 0xF0) low_ = 0x90;
    if (byte == 0xF4) high_ = 0x8F;
  } else {
    valid_ = false;
  }
}

void Utf8Check::feed(std::span<const std::uint8_t> piece) {
  std::size_t i = 0;
  while (valid_ && i < piece.size()) {
    if (pending_ == 0) {
      i += ascii_prefix(piece.subspan(i));
      if (i == piece.size()) return;
      start_character(piece[i++]);
      continue;
    }
    const std::uint8_t byte = piece[i++];
    valid_ = byte >= low_ && byte <= high_;
    low_ = 0x80;
    high_ = 0xBF;
    --pending_;
  }
}

/// Places the anchors of the next `tokens` tokens, each of which is one byte at `position_` and on.
void TextScan::place_anchors(std::int64_t tokens) {
  const auto first = static_cast<std::int64_t>(
      round_up(static_cast<std::uint64_t>(layout_.tokens), TextLayout::kAnchorTokens));
  for (std::int64_t token = first; token < layout_.tokens + tokens;
       token += TextLayout::kAnchorTokens) {
    layout_.anchors.push_back(position_ + static_cast<std::uint64_t>(token - layout_.tokens));
  }
}

void TextScan::feed(std::span<const std::uint8_t> piece) {
  if (const auto nul = find(piece, 0); nul && !nul_) nul_ = position_ + *nul;
  utf8_.feed(piece);
  while (!piece.empty()) {
    // Up to the next carriage return every byte is a token, but for an LF that ends a CRLF.
    const std::size_t plain = line_ends_.after_cr() ? 0 : find(piece, '\r').value_or(piece.size());
    place_anchors(static_cast<std::int64_t>(plain));
    layout_.tokens += static_cast<std::int64_t>(plain);
    position_ += plain;
    piece = piece.subspan(plain);
    if (piece.empty()) return;
    has_cr_ = has_cr_ || piece.front() == '\r';
    if (line_ends_.next(piece.front())) {
      place_anchors(1);
      ++layout_.tokens;
    }
    ++position_;
    piece = piece.subspan(1);
  }
}

TextLayout TextScan::finish() {
  if (!has_cr_) layout_.anchors = {};
  return std::move(layout_);
}

}  // namespace terrace::data
