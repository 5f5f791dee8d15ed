#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace terrace::testing {

/// JSON, parsed in one source for all tests: the parser is a third of the compilation of any that
/// calls it. Errors: nlohmann's, and std::runtime_error where the file cannot be opened.
[[nodiscard]] nlohmann::json parse_json(std::string_view text);
[[nodiscard]] nlohmann::json read_json(const std::filesystem::path& path);

}  // namespace terrace::testing
