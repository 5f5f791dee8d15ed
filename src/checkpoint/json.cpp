#include "json.h"

namespace terrace::checkpoint {

Json parse_object(std::string_view text, std::string_view where, ErrorKind kind) {
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

Json to_object(const Pairs& pairs) {
  Json json = Json::object();
  for (const auto& [name, value] : pairs) json[name] = value;
  return json;
}

}  // namespace terrace::checkpoint
