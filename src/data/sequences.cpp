#include "terrace/data/sequences.h"

#include <algorithm>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::data {

Sequences::Sequences(std::shared_ptr<const Dataset> dataset, std::int64_t length)
    : dataset_(std::move(dataset)), length_(length), targets_(dataset_->tokens() - 1) {
  require(length >= 1, ErrorKind::usage,
          "the sequence length (max_length) is {}, but at least 1 was expected", length);
  require(targets_ >= 1, ErrorKind::data,
          "{} has a single token, and a model learns, or is measured by, what follows one: give "
          "more data",
          dataset_->flag());
}

std::int64_t Sequences::targets(std::int64_t index) const {
  return std::min(length_, targets_ - index * length_);
}

Sequences Sequences::whole() const {
  const std::int64_t count = targets_ / length_;
  require(count >= 1, ErrorKind::data,
          "{} has {} in {}, but one sequence takes {} (max_length and one more); give "
          "more data or a smaller max_length",
          dataset_->flag(), counted(dataset_->tokens(), "token"),
          counted(dataset_->fingerprint().files.size(), "file"), length_ + 1);
  return slice(0, count);
}

Sequences Sequences::slice(std::int64_t first, std::int64_t count) const {
  require(first >= 0 && count >= 0 && first <= this->count() - count, ErrorKind::internal,
          "sequences {} to {} of {} were asked for", first, first + count, this->count());
  Sequences part = *this;
  part.first_ += first;
  part.targets_ = std::min(count * length_, targets_ - first * length_);
  return part;
}

void Sequences::read(std::int64_t index, std::span<std::int32_t> inputs,
                     std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(length_);
  require(index >= 0 && index < count() && inputs.size() == length && targets.size() == length,
          ErrorKind::internal, "sequence {} of {} was asked for, as {} and {} tokens of {}", index,
          count(), inputs.size(), targets.size(), length);
  const std::int64_t start = (first_ + index) * length_;
  const auto filled = static_cast<std::size_t>(this->targets(index));
  dataset_->read(start, inputs.first(filled));
  std::ranges::copy(inputs.first(filled).subspan(1), targets.begin());
  dataset_->read(start + static_cast<std::int64_t>(filled), targets.subspan(filled - 1, 1));
  std::ranges::fill(inputs.subspan(filled), 0);
  std::ranges::fill(targets.subspan(filled), kIgnoredTarget);
}

Split split(const Sequences& sequences, double validation_fraction) {
  require(validation_fraction >= 0 && validation_fraction < 1, ErrorKind::usage,
          "validation_fraction is {}, but a number from 0 to below 1 was expected",
          validation_fraction);
  const std::int64_t count = sequences.whole().count();
  auto held_out = static_cast<std::int64_t>(static_cast<double>(count) * validation_fraction);
  if (validation_fraction > 0) held_out = std::max<std::int64_t>(held_out, 1);
  require(held_out < count, ErrorKind::data,
          "{} gives {} of {} tokens, and a validation_fraction of {} leaves none to train "
          "on; give more data, a smaller max_length or no validation_fraction",
          sequences.dataset().flag(), counted(count, "sequence"), sequences.length(),
          validation_fraction);
  const std::int64_t trained = count - held_out;
  return {.training = sequences.slice(0, trained),
          .validation = sequences.slice(trained, held_out == 0 ? 0 : sequences.count() - trained)};
}

}  // namespace terrace::data
