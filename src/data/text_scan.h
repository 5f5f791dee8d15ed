#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace terrace::data {

/// Line ends as Terrace reads them, byte by byte: CRLF and a lone CR become LF, so that a carriage
/// return is never a token.
class LineEnds {
 public:
  /// The byte that `byte` becomes, or nothing for the LF of a CRLF.
  [[nodiscard]] std::optional<std::uint8_t> next(std::uint8_t byte) {
    const bool follows_cr = after_cr_;
    after_cr_ = byte == '\r';
    if (follows_cr && byte == '\n') return std::nullopt;
    return after_cr_ ? std::uint8_t{'\n'} : byte;
  }
  [[nodiscard]] bool after_cr() const { return after_cr_; }

 private:
  bool after_cr_ = false;
};

/// Checks that bytes are UTF-8 as RFC 3629 has it (no overlong forms, no surrogates), piece by
/// piece.
class Utf8Check {
 public:
  void feed(std::span<const std::uint8_t> piece);
  /// Whether all that was fed is valid and does not end inside a character.
  [[nodiscard]] bool valid() const { return valid_ && pending_ == 0; }

 private:
  void start_character(std::uint8_t byte);

  bool valid_ = true;
  int pending_ = 0;          ///< continuation bytes still to come
  std::uint8_t low_ = 0x80;  ///< range of the next continuation byte
  std::uint8_t high_ = 0xBF;
};

/// How the bytes of a text file become tokens.
struct TextLayout {
  /// Tokens from one anchor to the next: what a random access decodes in vain at most.
  static constexpr std::int64_t kAnchorTokens = 4096;

  std::uint64_t offset = 0;  ///< of the first byte of text, behind a byte-order mark
  std::int64_t tokens = 0;   ///< without the separator
  /// Offset in the file of tokens 0, kAnchorTokens, 2 kAnchorTokens, ...; empty when bytes are
  /// tokens one to one.
  std::vector<std::uint64_t> anchors;
};

/// Looks once through a text, in pieces of any length: counts its tokens, remembers where they lie,
/// and finds what makes it no text. Single-owner.
class TextScan {
 public:
  /// The first piece lies at `offset` in the file.
  explicit TextScan(std::uint64_t offset) : position_(offset) { layout_.offset = offset; }

  void feed(std::span<const std::uint8_t> piece);

  /// Offset in the file of the first NUL byte.
  [[nodiscard]] std::optional<std::uint64_t> nul() const { return nul_; }
  [[nodiscard]] bool is_utf8() const { return utf8_.valid(); }
  [[nodiscard]] bool has_carriage_returns() const { return has_cr_; }
  [[nodiscard]] TextLayout finish();

 private:
  void place_anchors(std::int64_t tokens);

  TextLayout layout_;
  std::uint64_t position_;
  LineEnds line_ends_;
  Utf8Check utf8_;
  std::optional<std::uint64_t> nul_;
  bool has_cr_ = false;
};

}  // namespace terrace::data
