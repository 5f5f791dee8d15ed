#include "terrace/data/loader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/data/permutation.h"

namespace terrace::data {

namespace {

/// Up to here doubles count every sample.
constexpr double kSamplesMax = 1LL << 53;

std::int64_t divide_up(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

std::int64_t end_of(double epochs, std::int64_t count) {
  if (epochs == 0) return std::numeric_limits<std::int64_t>::max();
  const double samples = epochs * static_cast<double>(count);
  require(samples <= kSamplesMax, ErrorKind::usage,
          "num_train_epochs is {}, and so many passes over {} are more samples than can be "
          "counted: give a smaller one, or --max_steps",
          epochs, counted(count, "sequence"));
  // 1.1 epochs of 10 are 11, though their product in doubles is a little more.
  constexpr double kRounding = 4 * std::numeric_limits<double>::epsilon();
  return static_cast<std::int64_t>(std::ceil(samples * (1 - kRounding)));
}

}  // namespace

Loader::Loader(Sequences sequences, LoaderOptions options)
    : sequences_(std::move(sequences)), options_(options) {
  require(sequences_.count() > 0 && options_.epochs >= 0, ErrorKind::internal,
          "a loader of {} sequences and {} epochs was asked for", sequences_.count(),
          options_.epochs);
  end_ = end_of(options_.epochs, sequences_.count());
}

SampleOrigin Loader::locate(std::int64_t sample) const {
  const std::int64_t count = sequences_.count();
  SampleOrigin origin{.epoch = sample / count, .index = sample % count};
  origin.sequence = options_.shuffle ? Permutation(options_.seed, origin.epoch, count)(origin.index)
                                     : origin.index;
  return origin;
}

std::int64_t Loader::sample_after(std::int64_t steps, std::int64_t begin,
                                  std::int64_t per_step) const {
  const std::int64_t count = samples_per_epoch();
  const std::int64_t to_next_epoch = divide_up(count - begin % count, per_step);
  if (steps < to_next_epoch) return std::min(begin + steps * per_step, std::max(begin, end_));
  const std::int64_t per_epoch = divide_up(count, per_step);
  steps -= to_next_epoch;
  const std::int64_t epoch = begin / count + 1 + steps / per_epoch;
  return std::min(epoch * count + steps % per_epoch * per_step, std::max(begin, end_));
}

std::int64_t Loader::steps_from(std::int64_t begin, std::int64_t per_step) const {
  const std::int64_t count = samples_per_epoch();
  const std::int64_t left = std::max<std::int64_t>(0, end_ - begin);
  const std::int64_t to_next_epoch = count - begin % count;
  if (left <= to_next_epoch) return divide_up(left, per_step);
  const std::int64_t later = left - to_next_epoch;
  return divide_up(to_next_epoch, per_step) + later / count * divide_up(count, per_step) +
         divide_up(later % count, per_step);
}

std::int64_t Loader::fill(SampleRange samples, std::span<std::int32_t> inputs,
                          std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(sequences_.length());
  const auto filled = static_cast<std::size_t>(samples.count) * length;
  require(samples.first >= 0 && samples.count >= 0 && inputs.size() >= filled &&
              targets.size() == inputs.size(),
          ErrorKind::internal, "{} rows of {} tokens were asked for, into {} and {} elements",
          samples.count, length, inputs.size(), targets.size());
  for (std::int64_t row = 0; row < samples.count; ++row) {
    const std::size_t offset = static_cast<std::size_t>(row) * length;
    sequences_.read(locate(samples.first + row).sequence, inputs.subspan(offset, length),
                    targets.subspan(offset, length));
  }
  std::ranges::fill(inputs.subspan(filled), 0);
  std::ranges::fill(targets.subspan(filled), kIgnoredTarget);
  return target_count(samples);
}

std::int64_t Loader::target_count(SampleRange samples) const {
  std::int64_t targets = 0;
  for (std::int64_t sample = samples.first; sample < samples.end(); ++sample) {
    targets += sequences_.targets(locate(sample).sequence);
  }
  return targets;
}

LoaderPosition Loader::position(std::int64_t samples) const {
  return {.samples = samples,
          .sequences = sequences_.count(),
          .length = sequences_.length(),
          .seed = options_.seed};
}

std::int64_t Loader::resume(const LoaderPosition& position) const {
  const LoaderPosition here = this->position(position.samples);
  require(position.length == here.length, ErrorKind::usage,
          "the run began with sequences of {} tokens (max_length), but now they have {}; give the "
          "same max_length, or begin a new run",
          position.length, here.length);
  require(position.seed == here.seed, ErrorKind::usage,
          "the run began with seed {}, but now it is {}; give the same seed, or begin a new run",
          position.seed, here.seed);
  require(position.sequences == here.sequences, ErrorKind::usage,
          "the run began with {} training sequences, but now there are {}; give the same data and "
          "validation_fraction, or begin a new run",
          position.sequences, here.sequences);
  require(position.samples >= 0, ErrorKind::corrupt,
          "the saved position in the data is {}, but no number of samples is below 0; resume from "
          "another checkpoint",
          position.samples);
  return position.samples;
}

}  // namespace terrace::data
