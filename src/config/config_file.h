#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "terrace/config/options.h"

namespace terrace::config {

/// What a file says, "auto" or not.
struct FileKeys {
  std::map<std::string, std::string> written;  ///< keys as they are there, and values as text
  std::set<std::string> canonical;             ///< of all options that they name

  [[nodiscard]] bool contains(const std::string& key) const {
    return written.contains(key) || canonical.contains(key);
  }
};

/// `read_config`, which returns what the file says.
FileKeys read_keys(OptionTable& table, const std::string& path);

/// Refuses what no file system takes for a name, before it is quoted whole. Errors: usage.
void require_name(std::string_view name, std::string_view what);

}  // namespace terrace::config
