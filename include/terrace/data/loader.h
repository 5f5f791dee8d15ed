#pragma once

#include <cstdint>
#include <span>

#include "terrace/data/sequences.h"

namespace terrace::data {

/// A target that does not count: the loss skips it.
inline constexpr std::int32_t kIgnoredTarget = -1;

/// How a step's samples are laid out over micro-batches and ranks.
struct BatchShape {
  std::int64_t micro_batch = 1;  ///< samples of one rank in one micro-batch
  std::int64_t accumulation = 1;
  std::int64_t world_size = 1;

  [[nodiscard]] constexpr std::int64_t samples_per_step() const {
    return micro_batch * accumulation * world_size;
  }
  /// The first of the `micro_batch` consecutive samples that `rank` takes in micro-batch `micro` of
  /// a step that begins at sample `step_begin`. A step takes the same samples for every shape with
  /// the same `samples_per_step`.
  [[nodiscard]] constexpr std::int64_t first_sample(std::int64_t step_begin, std::int64_t micro,
                                                    std::int64_t rank) const {
    return step_begin + (micro * world_size + rank) * micro_batch;
  }
};

struct LoaderOptions {
  std::uint64_t seed = 42;
  bool shuffle = true;      ///< off: the order of the stream in every epoch, as evaluation wants it
  std::int64_t epochs = 0;  ///< after which the samples end; 0: never
};

/// Where a run is in its data: all of the loader's state. It says nothing of ranks, so a run may go
/// on with another number of them. What is stored beside `samples` tells whether it still means the
/// same samples.
struct LoaderPosition {
  std::int64_t samples = 0;    ///< consumed by all ranks together since the run began
  std::int64_t sequences = 0;  ///< in an epoch
  std::int64_t length = 0;     ///< of a sequence, in tokens
  std::uint64_t seed = 0;
  friend bool operator==(const LoaderPosition&, const LoaderPosition&) = default;
};

/// Where a sample comes from.
struct SampleOrigin {
  std::int64_t epoch = 0;     ///< from 0
  std::int64_t index = 0;     ///< place in the epoch's order
  std::int64_t sequence = 0;  ///< of the `Sequences`
};

/// The samples of a run, numbered from 0 without end: epoch after epoch, each of which holds every
/// sequence once, in an order of its own that is a pure function of (seed, epoch, index)
/// (`Permutation`). There is nothing to seek and nothing to restore: any sample can be had at any
/// time, by any rank.
///
/// Thread-safe (immutable).
class Loader {
 public:
  /// Errors: internal, without a sequence.
  Loader(Sequences sequences, LoaderOptions options);

  [[nodiscard]] const Sequences& sequences() const { return sequences_; }
  [[nodiscard]] std::int64_t samples_per_epoch() const { return sequences_.count(); }
  [[nodiscard]] SampleOrigin locate(std::int64_t sample) const;

  /// Reads samples [first, first + rows). `inputs` and `targets` are [rows, T], row-major. Rows
  /// behind the last sample of the last epoch get inputs of 0 and targets of `kIgnoredTarget`.
  /// Returns the number of targets that count. Allocates nothing but what opening a file takes.
  /// Errors: as `Dataset::read`.
  std::int64_t fill(std::int64_t first, std::int64_t rows, std::span<std::int32_t> inputs,
                    std::span<std::int32_t> targets) const;

  /// What `fill` will return, without reading: the loss of a step divides by the count of the whole
  /// step, which must be known before its first backward.
  [[nodiscard]] std::int64_t target_count(std::int64_t first, std::int64_t rows) const;

  /// The position to save once `samples` have been consumed.
  [[nodiscard]] LoaderPosition position(std::int64_t samples) const;
  /// The sample to go on with. Errors: usage, when the position was saved with another seed,
  /// sequence length or number of sequences (of the same data), naming which.
  [[nodiscard]] std::int64_t resume(const LoaderPosition& position) const;

 private:
  [[nodiscard]] std::int64_t rows_left(std::int64_t first, std::int64_t rows) const;

  Sequences sequences_;
  LoaderOptions options_;
};

}  // namespace terrace::data
