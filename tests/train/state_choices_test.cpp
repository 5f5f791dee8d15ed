#include "train/state_choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "core/sanitized.h"
#include "terrace/optim/state_format.h"

// Each form of the state on some tier, and what a run does with state that another form left. Every
// form on every tier is state_product_test.

namespace terrace::train::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

constexpr const char* kType = "optimizer.type";
constexpr const char* kFormat = "optimizer.state_format";
constexpr const char* kMoments = "optimizer.moments";
constexpr const char* kStateTier = "zero_optimization.offload_optimizer.device";
constexpr const char* kParameterTier = "zero_optimization.offload_param.device";

TEST(StateChoices, are_those_of_the_table) {
  std::vector<std::string> keys;
  for (const StateChoices& option : state_choices()) keys.push_back(option.key);
  EXPECT_THAT(keys, IsSupersetOf({kType, kFormat, kMoments, kStateTier, kParameterTier}));
  EXPECT_THAT(choices_of(kType).choices, IsSupersetOf({"AdamW", "Adam", "Adagrad", "Lion"}));
  EXPECT_THAT(choices_of(kStateTier).choices, IsSupersetOf({"none", "cpu", "nvme"}));
}

class StateChoicesSmall : public StateChoicesTest {
 protected:
  /// A run of this type in a store, stopped after its third step; its checkpoint and its store
  /// stay.
  config::Settings stopped(const StateChoice& choice) {
    config::Settings settings = with(choice);
    settings.numerics.dtype = DType::bf16;
    const Result first = train_run(settings, [](const std::string& line, auto& signal) {
      if (line.starts_with("saved ")) signal = SIGTERM;
    });
    EXPECT_EQ(first.code, 143) << first.error;
    return settings;
  }
  void remove_all() {
    for (const char* name : {"run", "other"}) fs::remove_all(folder_ / name);
    for (const auto& entry : fs::directory_iterator(folder_ / "swap")) fs::remove_all(entry);
  }
};

TEST_F(StateChoicesSmall, each_form_of_the_state_works_to_the_end) {
  const std::vector<std::string> tiers = choices_of(kStateTier).choices;
  std::size_t number = 0;
  for (const StateChoice& choice : all_state_choices()) {
    // Of the forms on all tiers those that lie on the same one take turns.
    if (choice.at(kStateTier) != choice.at(kParameterTier)) continue;
    if (choice.at(kStateTier) != tiers[number++ / tiers.size() % tiers.size()]) continue;
    if (kSanitized && number / tiers.size() % 3 != 0) continue;
    SCOPED_TRACE(describe(choice));
    config::Settings settings = with(choice);
    settings.numerics.dtype = DType::bf16;
    EXPECT_TRUE(works_to_the_end(settings));
  }
  EXPECT_GE(from_stores_, kSanitized ? 0 : 2);
}

TEST_F(StateChoicesSmall, a_form_that_the_compute_type_has_not_is_refused_at_the_start) {
  config::Settings settings = with({{kFormat, "split"}});
  settings.numerics.dtype = DType::f32;
  EXPECT_FALSE(works_to_the_end(settings));
  settings.numerics.dtype = std::nullopt;
  EXPECT_TRUE(works_to_the_end(settings)) << "with bf16, whatever the processor has";
}

TEST_F(StateChoicesSmall, another_optimizer_takes_over_what_means_the_same_to_it_alone) {
  for (const std::string& before : choices_of(kType).choices) {
    const config::Settings first = stopped({{kType, before}, {kStateTier, "nvme"}});
    for (const std::string& now : choices_of(kType).choices) {
      if (now == before) continue;
      SCOPED_TRACE(before + " to " + now);
      const bool follows = optim::share_moments(optim::optimizer_type_named(before).value(),
                                                optim::optimizer_type_named(now).value());
      for (const bool from_store : {true, false}) {
        config::Settings second = first;
        choose(second, kType, now);
        second.output.resume = from_store ? "auto" : (folder_ / "run" / "checkpoint-3").string();
        // What is taken over may go on, so another output leaves the first one to the next.
        if (!from_store) second.output.folder = folder_ / "other";
        if (from_store && follows) continue;
        const Result result = train_run(second);
        if (follows) {
          EXPECT_EQ(result.code, 0) << result.error;
          EXPECT_TRUE(result.says(now + " takes over the moments of " + before));
          fs::remove_all(folder_ / "other");
          continue;
        }
        EXPECT_EQ(result.code, 2) << result.error;
        EXPECT_THAT(result.error, AllOf(HasSubstr("that of " + before + ", which keeps "),
                                        HasSubstr("--optim is " + now + ", which keeps "),
                                        HasSubstr("give --optim " + before)));
        EXPECT_FALSE(fs::exists(folder_ / "other"));
      }
    }
    remove_all();
  }
}

TEST_F(StateChoicesSmall, adam_goes_on_with_the_store_of_adamw) {
  config::Settings settings = stopped({{kType, "AdamW"}, {kStateTier, "nvme"}});
  choose(settings, kType, "Adam");
  settings.output.resume = "auto";
  const Result result = train_run(settings);
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_TRUE(result.says("from the committed store"));
  EXPECT_TRUE(result.says("Adam takes over the moments of AdamW"));
}

TEST_F(StateChoicesSmall, a_store_is_gone_on_with_in_the_form_that_it_has) {
  struct Change {
    const char* key;
    std::string before, now;
  };
  const config::Settings first = stopped(
      {{kFormat, "fp32"}, {kMoments, "fp32"}, {kStateTier, "nvme"}, {kParameterTier, "nvme"}});
  for (const Change& change : {Change{kFormat, "fp32", "split"}, Change{kMoments, "fp32", "bf16"},
                               Change{"dtype", "bf16", "fp32"}}) {
    config::Settings second = first;
    choose(second, change.key, change.now);
    second.output.resume = "auto";
    const Result result = train_run(second);
    EXPECT_EQ(result.code, 2) << result.error;
    EXPECT_THAT(result.error, AllOf(HasSubstr(std::string(change.key) + " " + change.before),
                                    HasSubstr(std::string(change.key) + " is " + change.now)));
  }
}

TEST_F(StateChoicesSmall, a_checkpoint_is_gone_on_with_in_any_form) {
  const config::Settings first = with({{kFormat, "fp32"}, {kMoments, "fp32"}});
  for (const std::string& format : choices_of(kFormat).choices) {
    for (const std::string& moments : choices_of(kMoments).choices) {
      SCOPED_TRACE(format + " " + moments);
      config::Settings whole = first;
      whole.numerics.dtype = DType::bf16;
      const std::vector<Row> reference = run(whole);
      config::Settings second = whole;
      second.output.folder = folder_ / "other";
      second.output.resume = folder_ / "run" / "checkpoint-3";
      choose(second, kFormat, format);
      choose(second, kMoments, moments);
      const Result result = train_run(second);
      EXPECT_EQ(result.code, 0) << result.error;
      const std::vector<Row> rest = rows(folder_ / "other");
      EXPECT_EQ(result.says("are rounded to bf16"), moments == "bf16");
      if (moments == "fp32") {
        EXPECT_THAT(rest, ElementsAreArray(reference.begin() + 3, reference.end()));
      }
      remove_all();
    }
  }
}

}  // namespace
}  // namespace terrace::train::testing
