#pragma once

#include <cstddef>
#include <string_view>

namespace terrace {

/// The least number of insertions, deletions, replacements and swaps of neighbours that turn one
/// name into the other; case, and `-` against `_`, do not count. For "did you mean".
/// Source: Damerau 1964, in the restricted form (no edit between swapped letters).
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace terrace
