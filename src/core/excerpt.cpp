#include "terrace/core/excerpt.h"

#include <fmt/core.h>

namespace terrace {

std::string excerpt(std::string_view text) {
  if (text.size() <= kExcerptBytesMax) return std::string(text);
  constexpr std::size_t kPart = kExcerptBytesMax / 2;
  const auto continues = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  std::size_t first = kPart;
  while (first > 0 && continues(first)) --first;
  std::size_t last = text.size() - kPart;
  while (last < text.size() && continues(last)) ++last;
  return fmt::format("{}...{}", text.substr(0, first), text.substr(last));
}

}  // namespace terrace
