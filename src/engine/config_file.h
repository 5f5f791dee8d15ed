#pragma once

#include <set>
#include <string>
#include <string_view>

#include "terrace/engine/options.h"

namespace terrace::engine {

/// `read_config`, which returns the canonical keys of all options that the file names.
std::set<std::string> read_keys(OptionTable& table, const std::string& path);

/// Refuses what no file system takes for a name, before it is quoted whole. Errors: usage.
void require_name(std::string_view name, std::string_view what);

}  // namespace terrace::engine
