#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terrace/core/error.h"

namespace terrace::checkpoint {

/// Keeps the order of keys, so that a file that is read and written again looks the same.
using Json = nlohmann::ordered_json;

/// Parses a text that must be one JSON object; `where` is named in messages.
/// Errors: kind `kind`, with the position of the first fault.
[[nodiscard]] Json parse_object(std::string_view text, std::string_view where, ErrorKind kind);

/// Names and their values.
using Pairs = std::vector<std::pair<std::string, std::string>>;
[[nodiscard]] Json to_object(const Pairs& pairs);

}  // namespace terrace::checkpoint
