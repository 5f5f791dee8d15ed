#pragma once

#include <string>
#include <utility>
#include <vector>

#include "terrace/core/json.h"

namespace terrace::checkpoint {

/// Names and their values.
using Pairs = std::vector<std::pair<std::string, std::string>>;

[[nodiscard]] inline Json to_object(const Pairs& pairs) {
  return Json::object_t(pairs.begin(), pairs.end());
}

}  // namespace terrace::checkpoint
