#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace::config {

/// A JSON value that remembers its line, for error messages.
struct JsonNode {
  enum class Kind { null, boolean, integer, number, text, array, object };

  Kind kind = Kind::null;
  int line = 1;  ///< of the key that it belongs to, else of the value
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text = {};
  std::vector<std::string> names = {};  ///< of an object's members, in order
  std::vector<JsonNode> items = {};     ///< of an array, or the members' values

  /// "the string \"1e-5\"", "the number 3", "an object": for errors.
  [[nodiscard]] std::string describe() const;
  /// A scalar as text ("true", "none"), "{...}" or "[...]" otherwise.
  [[nodiscard]] std::string scalar_text() const;
};

/// Parses strict JSON. Errors: usage, naming `name` and the line: not JSON, a repeated key.
[[nodiscard]] JsonNode parse_json(std::string_view text, const std::string& name);

}  // namespace terrace::config
