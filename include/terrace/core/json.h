#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "terrace/core/error.h"

namespace terrace {

/// Keeps the order of keys, so that a file that is read and written again looks the same; looking a
/// key up takes time in proportion to their number.
using Json = nlohmann::ordered_json;

// Text and values are turned into each other here and nowhere else: it takes a compiler longer than
// the rest of most sources that do so. What is no UTF-8 when it is written, as a path need not be,
// becomes U+FFFD.

/// As a file or `--json` has it: indented by two, with a newline at the end.
[[nodiscard]] std::string json_text(const Json& json);

/// On one line, without one at its end.
[[nodiscard]] std::string json_line(const Json& json);

/// Nothing where the text is no JSON.
[[nodiscard]] std::optional<Json> json_from(std::string_view text);

/// Parses a text that must be one JSON object; `where` is named in messages.
/// Errors: kind `kind`, with the position of the first fault.
[[nodiscard]] Json parse_object(std::string_view text, std::string_view where, ErrorKind kind);

}  // namespace terrace
