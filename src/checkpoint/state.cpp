#include "terrace/checkpoint/state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace terrace::checkpoint {

std::int64_t TensorShape::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t dimension : shape) count *= dimension;
  return count;
}

std::string format_shape(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace terrace::checkpoint
