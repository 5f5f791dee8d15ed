#pragma once

#include <set>
#include <string>

#include "terrace/engine/options.h"

namespace terrace::engine {

/// `read_config`, which returns the canonical keys of all options that the file names.
std::set<std::string> read_keys(OptionTable& table, const std::string& path);

}  // namespace terrace::engine
