#pragma once

#include <string>

#include "terrace/core/json.h"

namespace terrace::checkpoint {

/// A JSON object as lines for people: a line a value, objects indented under their name, lists of
/// objects as tables. A number whose name ends in "bytes" is printed as a size.
[[nodiscard]] std::string render(const Json& object);

}  // namespace terrace::checkpoint
