#pragma once

#include <vector>

#include "terrace/model/config.h"
#include "terrace/model/model.h"

namespace terrace::model {

/// A model's parameters in forward order, and which of them each unit uses.
struct Inventory {
  std::vector<ParameterSpec> parameters;
  std::vector<UnitSpec> units;
};

/// Names, shapes and order of a valid configuration. A unit's parameters stand in the order that
/// its code (`Embedding`, `LlamaBlock`, `Gpt2Block`, `Head`) counts them in.
[[nodiscard]] Inventory take_inventory(const Config& config);

}  // namespace terrace::model
