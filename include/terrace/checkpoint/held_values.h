#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/checkpoint/state.h"
#include "terrace/core/dtype.h"

// A type holds a value when the value, rounded to the type, is finite. What it does not hold (a
// NaN, an infinity, 1e5 in fp16) is no weight: it is found where weights are read or written
// anyway, and never stored as if it were one.

namespace terrace::checkpoint {

/// The largest number of the type: 65504 for fp16.
[[nodiscard]] float largest_of(DType dtype);

/// How many of the values the type (f32, bf16 or f16) does not hold. bf16 is rounded by the rule
/// for parameters (`to_parameter_bf16`).
[[nodiscard]] std::int64_t count_unheld(std::span<const float> values, DType dtype);

/// A source that notes which of the values that it gives cannot be held: weights by `dtype`,
/// moments by FP32, in which they are stored. It gives them as they are. Single-owner.
class HeldValues final : public StateSource {
 public:
  /// What becomes of a finite value that is too large for the type: it is noted, or it is replaced
  /// by the type's largest number of its sign.
  enum class TooLarge { noted, replaced };

  /// `source` must outlive it.
  HeldValues(StateSource& source, DType dtype, TooLarge too_large = TooLarge::noted)
      : source_(source), dtype_(dtype), too_large_(too_large) {}

  void read(StateKind kind, const std::string& tensor, std::int64_t first,
            std::span<float> values) override;
  /// Reads all values of a kind, only to note what cannot be held.
  void read_all(StateKind kind, std::span<const TensorShape> tensors);

  [[nodiscard]] bool all_held() const { return faults_.empty(); }
  /// `3 values of the tensor "w" are not finite, and 8 of 2 other tensors; the first is 1.2e+05
  /// (element 7), and the largest that fp16 holds is 65504`; of one that is not `all_held`.
  [[nodiscard]] std::string fault() const;
  /// How many values were replaced.
  [[nodiscard]] std::int64_t replaced() const { return replaced_; }

  /// Errors: numerics, `consequence` being the end of the sentence that `fault` begins.
  void require_all_held(std::string_view consequence) const;

 private:
  /// What of one tensor cannot be held.
  struct Fault {
    StateKind kind = StateKind::master;
    std::string tensor;
    std::int64_t count = 0;
    std::int64_t element = 0;  ///< the first that was met, and its value
    float value = 0;
  };

  void note(StateKind kind, const std::string& tensor, std::int64_t first,
            std::span<const float> values, DType dtype);

  StateSource& source_;
  DType dtype_;
  TooLarge too_large_;
  std::int64_t replaced_ = 0;
  std::vector<Fault> faults_;  ///< in the order in which they were met
};

}  // namespace terrace::checkpoint
