#include "terrace/train/inference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error_of.h"
#include "terrace/core/units.h"
#include "train/training.h"

// Evaluating and generating with a model's folder.

namespace terrace::train::testing {
namespace {

namespace fs = std::filesystem;
using terrace::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

class InferenceTest : public TrainingTest {
 protected:
  [[nodiscard]] config::Settings within(std::uint64_t host_bytes) const {
    config::Settings settings = this->settings("");
    settings.batch = {};
    settings.placement.host_memory = config::Budget{.bytes = host_bytes};
    return settings;
  }
  [[nodiscard]] static std::string generated(const config::Settings& settings) {
    Unattended alone;
    std::string text;
    (void)generate(settings, {.prompt = "memory", .tokens_max = 4, .stop_at_end = false},
                   alone.watch, alone.log, [&](std::string_view piece) { text += piece; });
    return text;
  }
  [[nodiscard]] static Evaluation evaluated(const config::Settings& settings) {
    Unattended alone;
    return evaluate_model(settings, alone.watch, alone.log);
  }
};

TEST_F(InferenceTest, a_budget_that_is_enough_changes_nothing) {
  const Evaluation free = evaluated(within(16 * kGiB));
  const Evaluation bounded = evaluated(within(80 * kMiB));
  EXPECT_GT(free.tokens, 0);
  EXPECT_TRUE(std::isfinite(free.loss));
  EXPECT_EQ(free.loss, bounded.loss);
  EXPECT_EQ(generated(within(16 * kGiB)), generated(within(80 * kMiB)));
}

TEST_F(InferenceTest, a_budget_below_the_need_is_refused_before_the_weights_are_opened) {
  // Whoever goes on to read them finds that they are gone, which is another error.
  for (const auto& entry : fs::directory_iterator(folder_ / "model")) {
    if (entry.path().extension() == ".safetensors") fs::remove(entry.path());
  }
  const config::Settings small = within(kMiB);
  for (const Error& error :
       {error_of([&] { return evaluated(small); }), error_of([&] { return generated(small); })}) {
    EXPECT_EQ(error.kind(), ErrorKind::does_not_fit) << error.what();
    EXPECT_THAT(error.what(), AllOf(HasSubstr("1.00 MiB"), HasSubstr("of it for parameters"),
                                    HasSubstr("raise --host_memory, or lower ")));
  }
  const config::Settings enough = within(80 * kMiB);
  EXPECT_EQ(error_of([&] { return evaluated(enough); }).kind(), ErrorKind::data);
  EXPECT_EQ(error_of([&] { return generated(enough); }).kind(), ErrorKind::data);
}

TEST_F(InferenceTest, a_larger_batch_needs_more_and_is_told_from_a_smaller_one) {
  config::Settings settings = within(80 * kMiB);
  EXPECT_GT(evaluated(settings).tokens, 0);
  settings.batch.micro = 60'000;
  const Error error = error_of([&] { return evaluated(settings); });
  EXPECT_EQ(error.kind(), ErrorKind::does_not_fit) << error.what();
  EXPECT_THAT(error.what(), AllOf(HasSubstr("60000 x 16 tokens"), HasSubstr("80.0")));
}

}  // namespace
}  // namespace terrace::train::testing
