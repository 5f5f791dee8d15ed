#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "terrace/data/sequences.h"

namespace terrace::data {

/// Samples [first, first + count) of a run.
struct SampleRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  [[nodiscard]] constexpr std::int64_t end() const { return first + count; }
  friend bool operator==(const SampleRange&, const SampleRange&) = default;
};

/// How a step's samples are laid out over micro-batches and ranks.
struct BatchShape {
  std::int64_t micro_batch = 1;  ///< samples of one rank in one micro-batch
  std::int64_t accumulation = 1;
  std::int64_t world_size = 1;

  /// Of a full step.
  [[nodiscard]] constexpr std::int64_t samples_per_step() const {
    return micro_batch * accumulation * world_size;
  }
  /// The consecutive samples of `step` that `rank` takes in micro-batch `micro`: `micro_batch` of
  /// them, fewer or none where the step has fewer than a full one. A step takes the same samples
  /// for every shape with the same `samples_per_step`.
  [[nodiscard]] constexpr SampleRange samples(SampleRange step, std::int64_t micro,
                                              std::int64_t rank) const {
    const std::int64_t first = step.first + (micro * world_size + rank) * micro_batch;
    return {first, std::clamp<std::int64_t>(step.end() - first, 0, micro_batch)};
  }
};

struct LoaderOptions {
  std::uint64_t seed = 42;
  bool shuffle = true;  ///< off: the order of the stream in every epoch, as evaluation wants it
  /// After which the samples end; 0: never. Of a part of an epoch the samples are rounded up.
  double epochs = 0;
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

/// The samples of a run, numbered from 0: epoch after epoch, each of which holds every sequence
/// once, in an order of its own that is a pure function of (seed, epoch, index) (`Permutation`).
/// There is nothing to seek and nothing to restore: any sample can be had at any time, by any rank.
///
/// A step takes the next samples, but none of a later epoch, and none behind the end of the run: at
/// both it takes what is left. So nothing is seen more often than was asked for, and where a run is
/// in its data is one number, whatever the size of its steps was until then.
///
/// Thread-safe (immutable).
class Loader {
 public:
  /// Errors: usage, when the epochs have more samples than can be counted; internal, without a
  /// sequence.
  Loader(Sequences sequences, LoaderOptions options);

  [[nodiscard]] const Sequences& sequences() const { return sequences_; }
  [[nodiscard]] std::int64_t samples_per_epoch() const { return sequences_.count(); }
  [[nodiscard]] SampleOrigin locate(std::int64_t sample) const;

  /// The first sample behind `steps` steps, of up to `per_step` samples each, that begin at sample
  /// `begin`.
  [[nodiscard]] std::int64_t sample_after(std::int64_t steps, std::int64_t begin,
                                          std::int64_t per_step) const;
  /// How many steps there are from sample `begin` to the end of the last epoch, of which there is
  /// one.
  [[nodiscard]] std::int64_t steps_from(std::int64_t begin, std::int64_t per_step) const;

  /// Reads samples. `inputs` and `targets` are [rows, T], row-major; the rows behind the last of
  /// `samples` get inputs of 0 and targets of `kIgnoredTarget`. Returns the number of targets that
  /// count. Allocates nothing but what opening a file takes. Errors: as `Dataset::read`.
  std::int64_t fill(SampleRange samples, std::span<std::int32_t> inputs,
                    std::span<std::int32_t> targets) const;

  /// What `fill` will return, without reading: the loss of a step divides by the count of the whole
  /// step, which must be known before its first backward.
  [[nodiscard]] std::int64_t target_count(SampleRange samples) const;

  /// The position to save once `samples` have been consumed.
  [[nodiscard]] LoaderPosition position(std::int64_t samples) const;
  /// The sample to go on with. Errors: usage, when the position was saved with another seed,
  /// sequence length or number of sequences (of the same data), naming which.
  [[nodiscard]] std::int64_t resume(const LoaderPosition& position) const;

 private:
  Sequences sequences_;
  LoaderOptions options_;
  std::int64_t end_;  ///< the first sample behind the last epoch
};

}  // namespace terrace::data
