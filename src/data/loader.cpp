#include "terrace/data/loader.h"

#include <algorithm>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/data/permutation.h"

namespace terrace::data {

Loader::Loader(Sequences sequences, LoaderOptions options)
    : sequences_(std::move(sequences)), options_(options) {
  require(sequences_.count() > 0 && options_.epochs >= 0, ErrorKind::internal,
          "a loader of {} sequences and {} epochs was asked for", sequences_.count(),
          options_.epochs);
}

SampleOrigin Loader::locate(std::int64_t sample) const {
  const std::int64_t count = sequences_.count();
  SampleOrigin origin{.epoch = sample / count, .index = sample % count};
  origin.sequence = options_.shuffle ? Permutation(options_.seed, origin.epoch, count)(origin.index)
                                     : origin.index;
  return origin;
}

/// How many of the rows lie before the end of the last epoch.
std::int64_t Loader::rows_left(std::int64_t first, std::int64_t rows) const {
  if (options_.epochs == 0) return rows;
  return std::clamp<std::int64_t>(options_.epochs * samples_per_epoch() - first, 0, rows);
}

std::int64_t Loader::fill(std::int64_t first, std::int64_t rows, std::span<std::int32_t> inputs,
                          std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(sequences_.length());
  require(first >= 0 && rows >= 0 && inputs.size() == static_cast<std::size_t>(rows) * length &&
              targets.size() == inputs.size(),
          ErrorKind::internal, "{} rows of {} tokens were asked for, into {} and {} elements", rows,
          length, inputs.size(), targets.size());
  const std::int64_t filled = rows_left(first, rows);
  for (std::int64_t row = 0; row < filled; ++row) {
    const std::size_t offset = static_cast<std::size_t>(row) * length;
    sequences_.read(locate(first + row).sequence, inputs.subspan(offset, length),
                    targets.subspan(offset, length));
  }
  const std::size_t rest = static_cast<std::size_t>(filled) * length;
  std::ranges::fill(inputs.subspan(rest), 0);
  std::ranges::fill(targets.subspan(rest), kIgnoredTarget);
  return target_count(first, rows);
}

std::int64_t Loader::target_count(std::int64_t first, std::int64_t rows) const {
  return rows_left(first, rows) * sequences_.length();
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
