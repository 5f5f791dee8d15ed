#include "core/parsed_json.h"

#include <fstream>
#include <stdexcept>

namespace terrace::testing {

nlohmann::json parse_json(std::string_view text) { return nlohmann::json::parse(text); }

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  return nlohmann::json::parse(file);
}

}  // namespace terrace::testing
