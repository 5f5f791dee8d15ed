#include "terrace/core/json.h"

namespace terrace {
namespace {

constexpr auto kReplace = Json::error_handler_t::replace;

}  // namespace

std::string json_text(const Json& json) { return json.dump(2, ' ', false, kReplace) + "\n"; }

std::string json_line(const Json& json) { return json.dump(-1, ' ', false, kReplace); }

std::optional<Json> json_from(std::string_view text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return std::nullopt;
  return json;
}

Json parse_object(std::string_view text, std::string_view where, ErrorKind kind) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& error) {
    fail(kind, "{} is not JSON from byte {} of {} on; it is damaged or was edited by mistake",
         where, error.byte, text.size());
  }
  require(json.is_object(), kind, "{} holds {} where a JSON object was expected", where,
          json.type_name());
  return json;
}

}  // namespace terrace
