#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "terrace/core/error.h"

namespace terrace::checkpoint {

/// Keeps the order of keys, so that a file that is read and written again looks the same.
using Json = nlohmann::ordered_json;

/// Parses a text that must be one JSON object; `where` is named in messages.
/// Errors: kind `kind`, with the position of the first fault.
[[nodiscard]] inline Json parse_object(std::string_view text, std::string_view where,
                                       ErrorKind kind) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& error) {
    fail(kind, "{} is no JSON from byte {} of {} on; it is damaged or was edited by mistake", where,
         error.byte, text.size());
  }
  require(json.is_object(), kind, "{} holds {} where a JSON object was expected", where,
          json.type_name());
  return json;
}

}  // namespace terrace::checkpoint
