#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace terrace {

/// What a sentence quotes of a text that may have any length.
inline constexpr std::size_t kExcerptBytesMax = 160;

/// `text`, or of a longer one its beginning and its end, with "..." between them. Cuts no character
/// of UTF-8 in two.
[[nodiscard]] std::string excerpt(std::string_view text);

}  // namespace terrace
