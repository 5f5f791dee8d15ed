#include "terrace/data/loader.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "data/data_files.h"

namespace terrace {
namespace {

using data::Loader;
using data::LoaderOptions;
using data::LoaderPosition;
using data::Sequences;
using ::testing::AllOf;
using testing::bytes_of;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::npy;
using testing::open_quietly;
using testing::refusal;
using testing::TemporaryFolder;
using testing::write_bytes;

constexpr std::int64_t kLength = 8;

/// Data whose token at position i is i, so that a sequence's first input names it.
class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() {
    // Two files, with a border inside a sequence; 101 sequences and 5 tokens over.
    std::vector<std::uint16_t> ids(101 * kLength + 1 + 5);
    std::iota(ids.begin(), ids.end(), std::uint16_t{0});
    const std::vector<std::uint16_t> first(ids.begin(), ids.begin() + 300);
    const std::vector<std::uint16_t> second(ids.begin() + 300, ids.end());
    write_bytes(folder_ / "a.npy", npy("<u2", "(300,)", bytes_of(first)));
    write_bytes(folder_ / "b.npy",
                npy("<u2", "(" + std::to_string(second.size()) + ",)", bytes_of(second)));
    dataset_ = open_quietly({folder_ / "a.npy", folder_ / "b.npy"}, {.vocab_size = 1000});
  }
  [[nodiscard]] Sequences sequences() const { return {dataset_, kLength}; }
  [[nodiscard]] Loader loader(LoaderOptions options = {}) const {
    return {sequences().whole(), options};
  }

  TemporaryFolder folder_;
  std::shared_ptr<const data::Dataset> dataset_;
};

/// The sequence numbers of samples [first, first + rows), read from the tokens themselves.
std::vector<std::int32_t> samples(const Loader& loader, std::int64_t first, std::int64_t rows) {
  const auto elements = static_cast<std::size_t>(rows * kLength);
  std::vector<std::int32_t> inputs(elements);
  std::vector<std::int32_t> targets(elements);
  EXPECT_EQ(loader.fill({first, rows}, inputs, targets), rows * kLength);
  std::vector<std::int32_t> numbers;
  for (std::size_t at = 0; at < elements; ++at) {
    EXPECT_EQ(targets[at], inputs[at] + 1);
    if (at % kLength == 0) {
      EXPECT_EQ(inputs[at] % kLength, 0);
      numbers.push_back(inputs[at] / static_cast<std::int32_t>(kLength));
    } else {
      EXPECT_EQ(inputs[at], inputs[at - 1] + 1);
    }
  }
  return numbers;
}

TEST_F(LoaderTest, sequences_are_cut_with_stride_t) {
  EXPECT_EQ(sequences().whole().count(), 101);
  std::vector<std::int32_t> inputs(kLength);
  std::vector<std::int32_t> targets(kLength);
  sequences().read(1, inputs, targets);
  EXPECT_THAT(inputs, ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_THAT(targets, ElementsAre(9, 10, 11, 12, 13, 14, 15, 16));
  EXPECT_EQ(Sequences(dataset_, dataset_->tokens() - 1).count(), 1);
}

TEST_F(LoaderTest, every_token_but_the_first_is_a_target_once) {
  for (const std::int64_t length : {1, 7, 8, 400, 813, 814, 5000}) {
    const Sequences all(dataset_, length);
    EXPECT_EQ(all.targets(), dataset_->tokens() - 1);
    std::vector<std::int32_t> inputs(static_cast<std::size_t>(length));
    std::vector<std::int32_t> targets(inputs.size());
    std::int32_t next = 1;
    for (std::int64_t index = 0; index < all.count(); ++index) {
      all.read(index, inputs, targets);
      const auto filled = static_cast<std::size_t>(all.targets(index));
      for (std::size_t at = 0; at < filled; ++at) {
        ASSERT_EQ(targets[at], next);
        ASSERT_EQ(inputs[at], next - 1);
        ++next;
      }
      EXPECT_THAT(std::span(inputs).subspan(filled), Each(0));
      EXPECT_THAT(std::span(targets).subspan(filled), Each(data::kIgnoredTarget));
    }
    EXPECT_EQ(next, dataset_->tokens());
  }
}

TEST_F(LoaderTest, too_few_tokens_are_refused_with_counts) {
  write_bytes(folder_ / "one.npy", npy("<u2", "(1,)", bytes_of(std::vector<std::uint16_t>{7})));
  const auto single = open_quietly({folder_ / "one.npy"});
  EXPECT_THAT(refusal(ErrorKind::data, [&] { Sequences(single, kLength); }),
              HasSubstr("a single token"));
  EXPECT_THAT(
      refusal(ErrorKind::data,
              [&] { static_cast<void>(Sequences(dataset_, dataset_->tokens()).whole()); }),
      AllOf(HasSubstr("814 tokens in 2 files"), HasSubstr("takes 815"), HasSubstr("max_length")));
  EXPECT_THAT(refusal(ErrorKind::usage, [&] { Sequences(dataset_, 0); }), HasSubstr("max_length"));
}

TEST_F(LoaderTest, every_epoch_holds_every_sequence_once_in_its_own_order) {
  std::vector<std::vector<std::int32_t>> epochs;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    epochs.push_back(samples(loader(), epoch * 101, 101));
    std::vector<std::int32_t> sorted = epochs.back();
    std::ranges::sort(sorted);
    for (std::int32_t number = 0; number < 101; ++number) {
      ASSERT_EQ(sorted[static_cast<std::size_t>(number)], number);
    }
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_NE(samples(loader({.seed = 43}), 0, 101), epochs[0]);
}

TEST_F(LoaderTest, without_shuffling_the_order_is_that_of_the_data) {
  const std::vector<std::int32_t> numbers = samples(loader({.shuffle = false}), 99, 4);
  EXPECT_THAT(numbers, ElementsAre(99, 100, 0, 1));
}

// Every step of three epochs (a batch of 12 does not divide 101): the uninterrupted run against one
// that begins anew at that step from the saved position.
TEST_F(LoaderTest, going_on_from_any_step_gives_the_uninterrupted_samples) {
  const std::vector<std::int32_t> whole = samples(loader(), 0, 303);
  for (std::int64_t consumed = 0; consumed < 303; consumed += 12) {
    const LoaderPosition saved = loader().position(consumed);
    const Loader resumed = loader();
    const std::int64_t first = resumed.resume(saved);
    const std::vector<std::int32_t> rest = samples(resumed, first, 303 - first);
    ASSERT_TRUE(std::ranges::equal(rest, std::span(whole).subspan(std::size_t(consumed))))
        << consumed;
  }
}

TEST_F(LoaderTest, rows_behind_the_samples_have_no_targets) {
  const Loader all(sequences(), {.shuffle = false});
  std::vector<std::int32_t> inputs(4 * kLength, 77);
  std::vector<std::int32_t> targets(4 * kLength, 77);
  EXPECT_EQ(all.fill({99, 2}, inputs, targets), 2 * kLength);
  EXPECT_EQ(all.target_count({99, 2}), 2 * kLength);
  EXPECT_EQ(inputs[0], 99 * kLength);
  EXPECT_EQ(targets[2 * kLength - 1], 101 * kLength);
  EXPECT_THAT(std::vector(inputs.begin() + 2 * kLength, inputs.end()), Each(0));
  EXPECT_THAT(std::vector(targets.begin() + 2 * kLength, targets.end()),
              Each(data::kIgnoredTarget));
  EXPECT_EQ(all.fill({100, 2}, inputs, targets), kLength + 5) << "the last sequence is shorter";
  EXPECT_EQ(all.target_count({100, 2}), kLength + 5);
  EXPECT_EQ(all.fill({100, 0}, inputs, targets), 0);
  EXPECT_THAT(targets, Each(data::kIgnoredTarget));
}

TEST_F(LoaderTest, the_split_takes_the_tail_and_shares_no_target) {
  const data::Split parts = data::split(sequences(), 0.1);
  EXPECT_EQ(parts.training.count(), 91);
  EXPECT_EQ(parts.validation.count(), 11) << "ten, and what is left at the end";
  EXPECT_EQ(parts.training.targets() + parts.validation.targets(), dataset_->tokens() - 1);
  std::vector<std::int32_t> numbers = samples(Loader(parts.validation, {.shuffle = false}), 0, 10);
  EXPECT_EQ(numbers.front(), 91);
  EXPECT_EQ(numbers.back(), 100);
  numbers = samples(Loader(parts.training, {}), 0, parts.training.count());
  EXPECT_EQ(std::ranges::max(numbers), 90);
  EXPECT_EQ(data::split(sequences(), 0).validation.count(), 0);
  EXPECT_EQ(data::split(sequences(), 0).training.count(), 101);
  EXPECT_EQ(data::split(sequences(), 1e-9).validation.count(), 2);
}

TEST_F(LoaderTest, a_split_that_leaves_nothing_is_refused) {
  const Sequences one(dataset_, dataset_->tokens() - 1);
  EXPECT_THAT(refusal(ErrorKind::data, [&] { static_cast<void>(data::split(one, 0.5)); }),
              HasSubstr("validation_fraction"));
  for (const double fraction : {-0.1, 1.0, 2.0, std::nan("")}) {
    EXPECT_THAT(
        refusal(ErrorKind::usage, [&] { static_cast<void>(data::split(sequences(), fraction)); }),
        HasSubstr("validation_fraction"));
  }
}

TEST_F(LoaderTest, a_position_that_means_other_samples_is_refused) {
  const LoaderPosition saved = loader().position(24);
  const auto message = [&](const Loader& other) {
    return refusal(ErrorKind::usage, [&] { static_cast<void>(other.resume(saved)); });
  };
  EXPECT_THAT(message(loader({.seed = 43})), HasSubstr("seed"));
  EXPECT_THAT(message(Loader(Sequences(dataset_, kLength + 1).whole(), {})),
              HasSubstr("max_length"));
  EXPECT_THAT(message(Loader(data::split(sequences(), 0.5).training, {})),
              HasSubstr("validation_fraction"));
  EXPECT_EQ(loader().resume(saved), 24);
}

TEST_F(LoaderTest, a_sample_says_where_it_comes_from) {
  const data::SampleOrigin origin = loader().locate(2 * 101 + 5);
  EXPECT_EQ(origin.epoch, 2);
  EXPECT_EQ(origin.index, 5);
  EXPECT_THAT(samples(loader(), 2 * 101 + 5, 1), ElementsAre(origin.sequence));
}

}  // namespace
}  // namespace terrace
