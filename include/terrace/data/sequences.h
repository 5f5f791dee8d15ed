#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "terrace/data/dataset.h"

namespace terrace::data {

/// A target that does not count: the loss skips it.
inline constexpr std::int32_t kIgnoredTarget = -1;

/// A run of a dataset's sequences. Sequence i of the dataset is made of the T + 1 tokens from iT:
/// inputs are the first T, targets the last T, so that every token but the first is a target once.
/// The dataset's last sequence has what is left, 1 to T targets. Sequences go over the borders of
/// documents and files; the separator tells the model. T is the sequence length.
///
/// Thread-safe (immutable); a cheap view that shares the dataset.
class Sequences {
 public:
  /// All sequences of `dataset`.
  /// Errors: usage, `length` below 1; data, when there is no token but one.
  Sequences(std::shared_ptr<const Dataset> dataset, std::int64_t length);

  [[nodiscard]] std::int64_t count() const { return (targets_ + length_ - 1) / length_; }
  /// T, in tokens.
  [[nodiscard]] std::int64_t length() const { return length_; }
  /// Of all these sequences together, and of sequence `index`.
  [[nodiscard]] std::int64_t targets() const { return targets_; }
  [[nodiscard]] std::int64_t targets(std::int64_t index) const;
  [[nodiscard]] const Dataset& dataset() const { return *dataset_; }

  /// Those of T targets, which are what is trained on. Errors: data, when there is none.
  [[nodiscard]] Sequences whole() const;
  /// The sequences [first, first + count) of these.
  [[nodiscard]] Sequences slice(std::int64_t first, std::int64_t count) const;

  /// Reads sequence `index`; `inputs` and `targets` have T elements each, and get 0 and
  /// `kIgnoredTarget` behind a sequence that is shorter. Errors: as `Dataset::read`.
  void read(std::int64_t index, std::span<std::int32_t> inputs,
            std::span<std::int32_t> targets) const;

 private:
  std::shared_ptr<const Dataset> dataset_;
  std::int64_t length_;
  std::int64_t first_ = 0;
  std::int64_t targets_;
};

/// What to train on and what to validate with.
struct Split {
  Sequences training;
  Sequences validation;  ///< of no sequence, if none were asked for
};

/// Takes the last `validation_fraction` of the whole sequences (rounded down, but at least one when
/// the fraction is above 0) for validation, and with them what is left at the end; no token is a
/// target in both parts. Without validation what is left at the end is in neither.
/// Errors: usage, a fraction outside [0, 1); data, when nothing would be left to train on.
[[nodiscard]] Split split(const Sequences& sequences, double validation_fraction);

}  // namespace terrace::data
