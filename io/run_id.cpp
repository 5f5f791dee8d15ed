#include "terrace/io/run_id.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <cerrno>
#include <charconv>

#include "terrace/core/error.h"

namespace terrace::io {
namespace {

constexpr std::size_t kWordDigits = 16;

std::optional<std::uint64_t> parse_word(std::string_view digits) {
  std::uint64_t word = 0;
  const char* end = digits.data() + digits.size();
  const auto [stopped, code] = std::from_chars(digits.data(), end, word, 16);
  return code == std::errc() && stopped == end ? std::optional(word) : std::nullopt;
}

}  // namespace

std::uint64_t draw_bits() {
  std::uint64_t bits = 0;
  const bool drawn = ::getrandom(&bits, sizeof(bits), 0) == sizeof(bits);
  require(drawn, ErrorKind::io, "cannot draw a random number: {}", errno_name(errno));
  return bits;
}

RunId RunId::draw() { return {draw_bits(), draw_bits()}; }

RunId RunId::parse(std::string_view text) {
  if (text.size() != 2 * kWordDigits) return {};
  const auto high = parse_word(text.substr(0, kWordDigits));
  const auto low = parse_word(text.substr(kWordDigits));
  return high && low ? RunId{*high, *low} : RunId{};
}

std::string RunId::text() const { return fmt::format("{:016x}{:016x}", high, low); }

}  // namespace terrace::io
