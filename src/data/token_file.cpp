#include "token_file.h"

#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <string_view>

#include "terrace/core/error.h"

namespace terrace::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie");

using Header = std::variant<TokenLayout, NoTokens>;

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr std::uint64_t kNpyHeaderMax = 64 << 10;  // NumPy itself stops at 10,000

struct LlmcFormat {
  std::int32_t magic;
  std::int32_t version;
  std::size_t width;
};
constexpr std::array kLlmcFormats = {LlmcFormat{20240520, 1, 2}, LlmcFormat{20240801, 7, 4}};
constexpr std::uint64_t kLlmcHeaderBytes = 256 * sizeof(std::int32_t);

void require_size(const io::InputFile& file, const TokenLayout& layout) {
  const auto payload = static_cast<std::uint64_t>(layout.tokens) * layout.width;
  require(
      file.size() == layout.offset + payload, ErrorKind::data,
      "{} has {} bytes, but its header promises {} tokens of {} bytes behind {} bytes, which is "
      "{}; it was cut short or altered, so write it again",
      file.path().string(), file.size(), layout.tokens, layout.width, layout.offset,
      layout.offset + payload);
}

/// The text behind `'key':` in the Python dictionary of an npy header, blanks skipped.
std::optional<std::string_view> value_of(std::string_view dictionary, std::string_view key) {
  for (const char quote : {'\'', '"'}) {
    const std::string quoted = quote + std::string(key) + quote;
    const std::size_t at = dictionary.find(quoted);
    if (at == std::string_view::npos) continue;
    const std::size_t colon = dictionary.find_first_not_of(' ', at + quoted.size());
    if (colon == std::string_view::npos || dictionary[colon] != ':') continue;
    const std::size_t start = dictionary.find_first_not_of(' ', colon + 1);
    if (start != std::string_view::npos) return dictionary.substr(start);
  }
  return std::nullopt;
}

/// "'<u2', ..." gives "<u2".
std::string_view unquoted(std::string_view text) {
  if (text.empty() || (text[0] != '\'' && text[0] != '"')) return {};
  const std::size_t end = text.find(text[0], 1);
  return end == std::string_view::npos ? std::string_view{} : text.substr(1, end - 1);
}

/// "(1000,), ..." gives 1000; anything but one dimension gives nothing.
std::optional<std::int64_t> one_dimension(std::string_view text) {
  if (!text.starts_with('(')) return std::nullopt;
  const std::string_view inside = text.substr(1, text.find(')') - 1);
  std::int64_t length = 0;
  const auto [end, code] = std::from_chars(inside.data(), inside.data() + inside.size(), length);
  const std::string_view rest(end, static_cast<std::size_t>(inside.data() + inside.size() - end));
  // The largest length whose bytes still fit a file's size.
  constexpr std::int64_t kTokensMax = std::int64_t{1} << 60;
  const bool valid =
      code == std::errc() && length >= 0 && length <= kTokensMax && (rest == "," || rest == ", ");
  return valid ? std::optional(length) : std::nullopt;
}

Header parse_npy_dictionary(std::string_view dictionary, std::uint64_t offset) {
  // Of one dimension, C and Fortran order are the same.
  const auto descr = value_of(dictionary, "descr");
  const auto shape = value_of(dictionary, "shape");
  if (!descr || !shape) return NoTokens{"has an npy header without 'descr' and 'shape'"};
  const std::string_view dtype = unquoted(*descr);
  const auto tokens = one_dimension(*shape);
  if (!tokens) {
    return NoTokens{fmt::format("has the shape {}, but token files have one dimension",
                                shape->substr(0, shape->find(')') + 1))};
  }
  if (dtype != "<u2" && dtype != "<u4" && dtype != "<i4") {
    return NoTokens{
        fmt::format("holds the dtype '{}', but token files hold uint16, uint32 or int32, "
                    "little-endian",
                    dtype)};
  }
  return TokenLayout{.offset = offset,
                     .tokens = *tokens,
                     .width = dtype == "<u2" ? std::size_t{2} : 4,
                     .is_signed = dtype == "<i4"};
}

}  // namespace

Header read_npy_header(const io::InputFile& file) {
  std::array<char, 12> start{};
  const auto head = std::span(start).first(std::min<std::uint64_t>(start.size(), file.size()));
  file.read(0, std::as_writable_bytes(head));
  if (!std::string_view(head.data(), head.size()).starts_with(kNpyMagic)) {
    return NoTokens{"does not begin as npy files do"};
  }
  const int version = start[6];
  if (version < 1 || version > 3) {
    return NoTokens{fmt::format("has npy version {}, but 1 to 3 are known", version)};
  }
  // Version 1 has a length of two bytes, the later ones of four.
  std::uint32_t length = 0;
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  std::memcpy(&length, start.data() + 8, length_bytes);
  const std::uint64_t offset = 8 + length_bytes + length;
  require(length <= kNpyHeaderMax && offset <= file.size(), ErrorKind::data,
          "{} has {} bytes, but its npy header alone should end at byte {}; it was cut short or "
          "altered, so write it again",
          file.path().string(), file.size(), offset);
  std::string dictionary(length, '\0');
  file.read(8 + length_bytes, std::as_writable_bytes(std::span(dictionary)));
  Header header = parse_npy_dictionary(dictionary, offset);
  if (const auto* layout = std::get_if<TokenLayout>(&header)) require_size(file, *layout);
  return header;
}

Header read_llmc_header(const io::InputFile& file) {
  std::array<std::int32_t, 3> start{};
  if (file.size() < kLlmcHeaderBytes) {
    return NoTokens{fmt::format("has {} bytes, but the header of an llm.c token file has {}",
                                file.size(), kLlmcHeaderBytes)};
  }
  file.read(0, std::as_writable_bytes(std::span(start)));
  const auto [magic, version, count] = start;
  for (const LlmcFormat& format : kLlmcFormats) {
    if (magic != format.magic) continue;
    require(version == format.version && count >= 0, ErrorKind::data,
            "{} is an llm.c token file with version {} and {} tokens, but version {} is what goes "
            "with magic {}; write it again",
            file.path().string(), version, count, format.version, magic);
    const TokenLayout layout{.offset = kLlmcHeaderBytes, .tokens = count, .width = format.width};
    require_size(file, layout);
    return layout;
  }
  return NoTokens{fmt::format("begins with {}, but an llm.c token file begins with {} or {}", magic,
                              kLlmcFormats[0].magic, kLlmcFormats[1].magic)};
}

}  // namespace terrace::data
