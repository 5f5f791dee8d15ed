#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "data/data_files.h"
#include "terrace/data/loader.h"

// How a run's samples are dealt out to steps.

namespace terrace {
namespace {

using data::BatchShape;
using data::Loader;
using data::SampleRange;
using ::testing::AllOf;
using testing::bytes_of;
using ::testing::HasSubstr;
using testing::npy;
using testing::open_quietly;
using testing::refusal;
using testing::TemporaryFolder;
using testing::write_bytes;

class Steps : public ::testing::Test {
 protected:
  Steps() {
    const std::vector<std::uint16_t> ids(41, 1);
    write_bytes(folder_ / "ids.npy", npy("<u2", "(41,)", bytes_of(ids)));
    dataset_ = open_quietly({folder_ / "ids.npy"});
  }
  /// Of `count` sequences, at most 40.
  [[nodiscard]] Loader loader(std::int64_t count, double epochs) const {
    return {data::Sequences(dataset_, 1).slice(0, count), {.epochs = epochs}};
  }
  /// The samples of each step from `begin` on, by taking one step after the other.
  static std::vector<SampleRange> walk(const Loader& loader, std::int64_t begin,
                                       std::int64_t per_step, std::int64_t steps) {
    std::vector<SampleRange> result;
    for (std::int64_t step = 0; step < steps; ++step) {
      const std::int64_t end = loader.sample_after(1, begin, per_step);
      result.push_back({begin, end - begin});
      begin = end;
    }
    return result;
  }

  TemporaryFolder folder_;
  std::shared_ptr<const data::Dataset> dataset_;
};

TEST_F(Steps, no_sequence_is_seen_more_often_than_asked_and_none_less) {
  for (const std::int64_t count : {1, 2, 3, 5, 6, 7, 12, 40}) {
    for (const std::int64_t per_step : {1, 2, 3, 4, 7, 8, 32, 100}) {
      for (const double epochs : {0.3, 0.5, 1.0, 1.1, 2.0, 2.5, 3.0}) {
        SCOPED_TRACE(fmt::format("{} sequences, {} a step, {} epochs", count, per_step, epochs));
        const Loader source = loader(count, epochs);
        const std::int64_t steps = source.steps_from(0, per_step);
        std::map<std::int64_t, std::vector<std::int64_t>> seen;  // by epoch
        for (const SampleRange& step : walk(source, 0, per_step, steps)) {
          ASSERT_GE(step.count, 1);
          ASSERT_LE(step.count, per_step);
          const std::int64_t epoch = source.locate(step.first).epoch;
          ASSERT_EQ(source.locate(step.end() - 1).epoch, epoch) << "a step over an epoch's end";
          for (std::int64_t sample = step.first; sample < step.end(); ++sample) {
            seen[epoch].push_back(source.locate(sample).sequence);
          }
        }
        double samples = 0;
        for (auto& [epoch, sequences] : seen) {
          samples += static_cast<double>(sequences.size());
          std::ranges::sort(sequences);
          ASSERT_EQ(std::ranges::adjacent_find(sequences), sequences.end());
          const bool is_last = epoch == seen.rbegin()->first;
          ASSERT_TRUE(is_last || std::ssize(sequences) == count);
        }
        const double asked = epochs * static_cast<double>(count);
        ASSERT_GE(samples, asked * (1 - 1e-12));
        ASSERT_LT(samples, asked * (1 - 1e-12) + 1) << "a part of an epoch is rounded up";
        // As many steps as the Trainer takes.
        ASSERT_TRUE(epochs != 2 || steps == 2 * ((count + per_step - 1) / per_step)) << steps;
      }
    }
  }
}

TEST_F(Steps, epochs_that_a_step_divides_have_full_steps_alone) {
  const Loader source = loader(12, 0);
  for (std::int64_t step = 0; step <= 30; ++step) {
    EXPECT_EQ(source.sample_after(step, 0, 4), 4 * step);
    EXPECT_EQ(source.sample_after(step, 8, 4), 8 + 4 * step);
  }
}

TEST_F(Steps, many_steps_at_once_are_as_many_one_by_one_from_any_sample) {
  for (const double epochs : {0.0, 2.5, 4.0}) {
    const Loader source = loader(7, epochs);
    for (const std::int64_t per_step : {1, 2, 3, 7, 9}) {
      for (std::int64_t begin = 0; begin <= 28; ++begin) {
        const std::vector<SampleRange> steps = walk(source, begin, per_step, 30);
        for (std::int64_t step = 0; step < 30; ++step) {
          ASSERT_EQ(source.sample_after(step, begin, per_step),
                    steps[static_cast<std::size_t>(step)].first)
              << step << " steps of " << per_step << " from " << begin << " of " << epochs;
        }
        if (epochs == 0) continue;
        const auto some =
            std::ranges::count_if(steps, [](const SampleRange& step) { return step.count > 0; });
        ASSERT_EQ(source.steps_from(begin, per_step), some) << begin << " " << per_step;
      }
    }
  }
}

TEST_F(Steps, going_on_with_another_size_of_step_loses_and_repeats_nothing) {
  const Loader source = loader(11, 3);
  for (std::int64_t before = 0; before <= 9; ++before) {
    const std::int64_t begin = source.sample_after(before, 0, 4);
    std::int64_t next = begin;
    for (const SampleRange& step : walk(source, begin, 3, source.steps_from(begin, 3))) {
      EXPECT_EQ(step.first, next);
      next = step.end();
    }
    EXPECT_EQ(next, 33);
  }
}

TEST_F(Steps, a_step_takes_the_same_samples_for_every_world_and_micro_batch) {
  for (const SampleRange step : {SampleRange{24, 12}, SampleRange{36, 5}, SampleRange{7, 1}}) {
    for (const BatchShape& shape : {BatchShape{1, 12, 1}, BatchShape{12, 1, 1}, BatchShape{2, 3, 2},
                                    BatchShape{1, 3, 4}, BatchShape{4, 1, 3}}) {
      ASSERT_EQ(shape.samples_per_step(), 12);
      std::int64_t next = step.first;
      for (std::int64_t micro = 0; micro < shape.accumulation; ++micro) {
        for (std::int64_t rank = 0; rank < shape.world_size; ++rank) {
          const SampleRange part = shape.samples(step, micro, rank);
          if (part.count == 0) continue;
          ASSERT_EQ(part.first, next);
          next = part.end();
        }
      }
      ASSERT_EQ(next, step.end());
    }
  }
}

TEST_F(Steps, more_samples_than_can_be_counted_are_refused) {
  EXPECT_THAT(refusal(ErrorKind::usage, [&] { static_cast<void>(loader(40, 1e17)); }),
              AllOf(HasSubstr("num_train_epochs"), HasSubstr("--max_steps")));
}

}  // namespace
}  // namespace terrace
