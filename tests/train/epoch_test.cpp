#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "core/parsed_json.h"
#include "model/reference_model.h"
#include "terrace/train/inference.h"
#include "train/training.h"

// Data that no step, no micro-batch and no sequence divides: what a step takes at the end of an
// epoch and what an evaluation measures, against plain double-precision code.

namespace terrace::train::testing {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr std::int64_t kLength = 16;
/// A loss is a sum over tokens in double of values that came down a chain of 2 blocks whose longest
/// inner sum has 37 terms, each addition in floats of 2^-24.
const double kLossBound = 2 * 7 * 37 * std::ldexp(1.0, -24);

/// What epoch and tokens say, which `Row` leaves out.
struct Progress {
  double epoch = 0;
  double tokens = 0;
  double loss = 0;
};

class EpochTest : public TrainingTest {
 protected:
  EpochTest() {
    write_model(folder_ / "model", small_llama(true),
                [&](const std::string& tensor, std::int64_t, std::span<float> values) {
                  std::vector<double>& all = weights_[tensor];
                  all.insert(all.end(), values.begin(), values.end());
                });
  }

  /// A run over so many whole sequences and `left` more tokens, of steps of 2 x 2, on a model that
  /// it does not change.
  [[nodiscard]] config::Settings over(std::size_t sequences, double epochs,
                                      std::size_t left = 0) const {
    const std::string name = std::to_string(sequences) + "+" + std::to_string(left);
    write(folder_ / name, text_of(sequences, left));
    config::Settings settings = this->settings("over " + name);
    settings.data.files = {folder_ / name};
    settings.length.max_steps = -1;
    settings.length.epochs = epochs;
    settings.optimizer.learning_rate = 1e-30;
    settings.optimizer.weight_decay = 0;
    return settings;
  }
  /// With the separator that follows it, one token more than targets.
  [[nodiscard]] static std::string text_of(std::size_t sequences, std::size_t left = 0) {
    return text(sequences * kLength + left, static_cast<unsigned>(sequences));
  }

  /// The summed loss of each sequence of a text, the last one shorter.
  [[nodiscard]] std::vector<double> reference(const std::string& contents) const {
    std::vector<std::int32_t> tokens;
    for (const char byte : contents) tokens.push_back(static_cast<unsigned char>(byte));
    tokens.push_back(0);
    const model::Config config = small_llama(true);
    const model::reference::ReferenceModel<double> model(config, weights_);
    std::vector<double> losses;
    for (std::size_t first = 0; first + 1 < tokens.size(); first += kLength) {
      const std::size_t end = std::min(first + kLength, tokens.size() - 1);
      const auto at = [&](std::size_t i) { return tokens.begin() + static_cast<long>(i); };
      losses.push_back(model.loss({at(first), at(end)}, {at(first + 1), at(end + 1)}));
    }
    return losses;
  }

  [[nodiscard]] std::vector<Progress> progress(const config::Settings& settings) const {
    const Result result = train_run(settings);
    EXPECT_EQ(result.code, 0) << result.error;
    std::vector<Progress> steps;
    std::ifstream file(std::filesystem::path(settings.output.folder) / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto row = terrace::testing::parse_json(line);
      steps.push_back({row.at("epoch"), row.at("tokens"), row.at("loss")});
    }
    return steps;
  }

  std::map<std::string, std::vector<double>> weights_;
};

TEST_F(EpochTest, each_sequence_counts_once_an_epoch_and_a_step_by_its_real_tokens) {
  for (const std::size_t count : {1, 2, 3, 5, 6, 8}) {
    SCOPED_TRACE(count);
    const std::vector<double> each = reference(text_of(count));
    ASSERT_EQ(each.size(), count);
    double all = 0;
    for (const double loss : each) all += loss;
    const std::vector<Progress> steps = progress(over(count, 2));
    const std::size_t per_epoch = (count + 3) / 4;
    ASSERT_EQ(steps.size(), 2 * per_epoch);
    for (std::size_t epoch = 0; epoch < 2; ++epoch) {
      double tokens = 0;
      double sum = 0;
      for (std::size_t step = 0; step < per_epoch; ++step) {
        const Progress& done = steps[epoch * per_epoch + step];
        tokens += done.tokens;
        sum += done.loss * done.tokens;
        EXPECT_DOUBLE_EQ(
            done.epoch, static_cast<double>(epoch) + tokens / static_cast<double>(count * kLength));
      }
      EXPECT_EQ(tokens, count * kLength);
      EXPECT_NEAR(sum, all, kLossBound * all);
    }
    if (count != 5) continue;
    // The last step is one sequence, and its loss that one's mean.
    EXPECT_EQ(steps[1].tokens, kLength);
    EXPECT_TRUE(std::ranges::any_of(each, [&](double loss) {
      return std::abs(steps[1].loss * kLength - loss) <= kLossBound * loss;
    }));
  }
}

TEST_F(EpochTest, a_part_of_an_epoch_is_rounded_up_to_a_sequence) {
  for (const auto& [epochs, samples] : {std::pair(0.5, 3.0), {1.1, 6.0}, {1.5, 8.0}, {2.4, 12.0}}) {
    SCOPED_TRACE(epochs);
    config::Settings settings = over(5, epochs);
    settings.output.folder = folder_ / std::to_string(epochs);
    const std::vector<Progress> steps = progress(settings);
    ASSERT_FALSE(steps.empty());
    EXPECT_DOUBLE_EQ(steps.back().epoch, samples / 5);
  }
}

// The gradient is that of the three sequences alone: micro-batches of 2 and 1 against one of 3.
TEST_F(EpochTest, a_padded_step_is_the_step_of_its_samples_to_rounding) {
  config::Settings padded = over(3, 1);
  config::Settings whole = padded;
  whole.output.folder = folder_ / "whole";
  whole.batch.micro = 3;
  whole.batch.accumulation = 1;
  const Row a = run(padded).at(0);
  const Row b = run(whole).at(0);
  EXPECT_NEAR(a.loss, b.loss, kLossBound * b.loss);
  // As for whole steps, see NumericsTest: 48 tokens here.
  EXPECT_NEAR(a.grad_norm, b.grad_norm,
              10 * (48 + 2 * 7 * 37) * std::ldexp(1.0, -24) * b.grad_norm);
}

TEST_F(EpochTest, a_run_resumed_after_any_step_of_uneven_epochs_is_the_uninterrupted_run) {
  const auto base = [&](const std::string& output) {
    config::Settings settings = over(5, 3, 7);
    settings.output.folder = folder_ / output;
    settings.optimizer.learning_rate = 1e-2;
    return settings;
  };
  const std::vector<Row> reference = run(base("reference"));
  ASSERT_EQ(reference.size(), 6U);
  config::Settings saving = base("saving");
  saving.cadence.save_steps = 1;
  saving.cadence.save_total_limit = 0;
  saving.placement.optimizer.device = config::Placement::nvme;
  EXPECT_THAT(run(saving), ElementsAreArray(reference));
  const config::Placement places[] = {config::Placement::nvme, config::Placement::cpu,
                                      config::Placement::none};
  for (std::size_t step = 1; step < 6; ++step) {
    config::Settings resumed = base("from " + std::to_string(step));
    resumed.output.resume = folder_ / "saving" / ("checkpoint-" + std::to_string(step));
    resumed.placement.optimizer.device = places[step % 3];
    EXPECT_THAT(run(resumed),
                ElementsAreArray(reference.begin() + static_cast<long>(step), reference.end()));
  }
}

TEST_F(EpochTest, a_batch_larger_than_the_data_trains_on_all_of_it_each_step) {
  config::Settings settings = over(2, 3);
  settings.batch.micro = 8;
  settings.batch.accumulation = 1;
  settings.placement.parameters.device = config::Placement::nvme;
  settings.placement.optimizer.device = config::Placement::nvme;
  const std::vector<Progress> steps = progress(settings);
  ASSERT_EQ(steps.size(), 3U);
  for (const Progress& step : steps) EXPECT_EQ(step.tokens, 2 * kLength);
  EXPECT_EQ(steps.back().epoch, 3);
}

TEST_F(EpochTest, an_evaluation_measures_every_token_but_the_first) {
  Unattended alone;
  for (const auto& [sequences, left] : {std::pair(0, 5), {1, 0}, {3, 0}, {3, 1}, {11, 9}}) {
    const std::string contents =
        text_of(static_cast<std::size_t>(sequences), static_cast<std::size_t>(left));
    SCOPED_TRACE(contents.size());
    config::Settings settings =
        over(static_cast<std::size_t>(sequences), 1, static_cast<std::size_t>(left));
    settings.batch = {};
    double all = 0;
    for (const double loss : reference(contents)) all += loss;
    const Evaluation result = evaluate_model(settings, alone.watch, alone.log);
    EXPECT_EQ(result.tokens, std::ssize(contents)) << "a separator follows it";
    EXPECT_NEAR(result.loss, all / static_cast<double>(contents.size()), kLossBound * result.loss);
  }
}

TEST_F(EpochTest, what_is_left_over_is_validated_with_or_said) {
  config::Settings settings = over(10, 1, 7);
  Result result = train_run(settings);
  EXPECT_TRUE(result.says("7 tokens at the end left over"));
  EXPECT_TRUE(result.says("the last of an epoch of 2"));
  settings.output.folder = folder_ / "validating";
  settings.data.validation_fraction = 0.2;
  result = train_run(settings);
  EXPECT_FALSE(result.says("left over"));
  const std::vector<double> each = reference(text_of(10, 7));
  const double held_out = each[8] + each[9] + each[10];
  EXPECT_NEAR(rows(settings.output.folder).back().eval_loss, held_out / (2 * kLength + 7),
              kLossBound * held_out);
}

TEST_F(EpochTest, a_prompt_beyond_the_context_is_said) {
  config::Settings settings = over(1, 1);
  const auto warned = [&](std::size_t length) {
    Unattended alone;
    std::vector<std::string> lines;
    Log log([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
    (void)generate(settings,
                   {.prompt = std::string(length, 'a'), .tokens_max = 1, .stop_at_end = false},
                   alone.watch, log, [](std::string_view) {});
    return lines;
  };
  EXPECT_THAT(warned(15), ::testing::IsEmpty());
  EXPECT_THAT(warned(20), ::testing::ElementsAre(::testing::AllOf(
                              HasSubstr("the prompt has 21 tokens"), HasSubstr("the first 5 are"),
                              HasSubstr("raise --max_length, up to 64"))));
}

}  // namespace
}  // namespace terrace::train::testing
