#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "terrace/core/log.h"
#include "terrace/core/progress.h"
#include "terrace/core/state_kind.h"

// The seam between files and a run: here a model is a list of named tensors and their state kinds.
// Flats, pages, tiers and ranks are behind the source and the sink.

namespace terrace::checkpoint {

/// A tensor's name, as in the model's Hugging Face folder, and its shape in elements. Rank 0 is one
/// element; a dimension of 0 is none.
struct TensorShape {
  std::string name;
  std::vector<std::int64_t> shape;

  [[nodiscard]] std::int64_t elements() const;
};

/// "[2, 3]".
[[nodiscard]] std::string format_shape(std::span<const std::int64_t> shape);

/// Where state comes from; gradients are never asked for. Called from one thread at a time.
class StateSource {
 public:
  virtual ~StateSource() = default;
  /// Fills `values` with elements [first, first + values.size()) of the tensor, C order, FP32.
  virtual void read(StateKind kind, const std::string& tensor, std::int64_t first,
                    std::span<float> values) = 0;
};

/// Where state goes. Called from one thread at a time, in any order of tensors, once an element.
class StateSink {
 public:
  virtual ~StateSink() = default;
  /// Takes elements [first, first + values.size()) of the tensor, C order, FP32; the values are
  /// copied before it returns.
  virtual void write(StateKind kind, const std::string& tensor, std::int64_t first,
                     std::span<const float> values) = 0;
};

/// Elements that are moved at a time: 4 MiB in FP32. All that this layer holds of a model's state
/// at once is one piece and its converted copy.
inline constexpr std::int64_t kPieceElements = 1 << 20;

/// Something that the user should read: a file that was ignored, a key that has no effect.
struct Remark {
  LogLevel level = LogLevel::info;
  std::string text;
};

}  // namespace terrace::checkpoint
