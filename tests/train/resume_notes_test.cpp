#include "resume_notes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/parse.h"

namespace terrace::train {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

/// The settings as a run of 10 steps would have resolved them.
config::Settings resolved(config::Settings settings) {
  config::resolve_batch(settings.batch, 1);
  const std::int64_t threads = settings.ranks.threads;
  return written_out(settings, {settings.numerics.dtype.value_or(DType::bf16),
                                settings.optimizer.learning_rate.value_or(5e-5),
                                settings.length.max_steps > 0 ? settings.length.max_steps : 10,
                                threads > 0 ? static_cast<int>(threads) : 2});
}

config::Settings resolved(const std::vector<std::string>& arguments) {
  return resolved(config::parse(arguments).settings);
}

checkpoint::TrainerState saved(const config::Settings& settings) {
  checkpoint::TrainerState state;
  state.global_step = 5;
  state.adam_step = 5;
  state.numerics = numerics_of(settings);
  state.layout = layout_of(settings);
  return state;
}

TEST(ResumeNotes, name_each_setting_with_both_values_and_say_what_the_rate_does) {
  const config::Settings before = resolved({"--max_steps", "10", "--learning_rate", "1e-3"});
  const config::Settings now = resolved(
      {"--max_steps", "10", "--learning_rate", "1e-3", "--warmup_steps", "6", "--min_lr_ratio",
       "0.5", "--moments", "bf16", "--gradient_dtype", "fp32", "--decay_all", "--threads", "1"});
  EXPECT_THAT(
      resume_notes(saved(before), now),
      ElementsAre(
          "decay_all was false and is true", "moments was fp32 and is bf16",
          "warmup_steps was 0 and is 6", "min_lr_ratio was 0 and is 0.5",
          "gradient_dtype was bf16 and is fp32", "threads was 2 and is 1",
          "the learning rate goes on from 0.0006 at step 5 to 0.0008333 at step 6: the schedule "
          "was linear, 0.001, then down to 0 at step 10; it is linear, from 0 up to 0.001 in 6 "
          "steps, then down to 0.0005 at step 10"));
}

TEST(ResumeNotes, are_none_for_the_same_run_however_it_is_asked_for) {
  const config::Settings before = resolved({"--max_steps", "10"});
  for (const std::vector<std::string>& same :
       {std::vector<std::string>{"--max_steps", "10", "--threads", "2", "--bf16"},
        {"--max_steps", "10", "--learning_rate", "5e-5", "--betas", "0.9,0.999"},
        {"--max_steps", "10", "--gradient_dtype", "bf16", "--train_batch_size", "8"},
        {"--max_steps", "10", "--set", "scheduler.params.total_num_steps=10"},
        {"--max_steps", "10", "--set", "fp16.hysteresis=3"}}) {
    EXPECT_THAT(resume_notes(saved(before), resolved(same)), IsEmpty()) << same[2];
  }
}

TEST(ResumeNotes, say_what_an_earlier_version_has_not_recorded) {
  checkpoint::TrainerState state = saved(resolved({"--max_steps", "10"}));
  state.numerics = {{"learning_rate", "0.001"}, {"betas", "0.9, 0.999"}, {"eps", "1e-08"}};
  state.layout.clear();
  const auto notes = resume_notes(state, resolved({"--max_steps", "10"}));
  EXPECT_THAT(notes, Contains("learning_rate was 0.001 and is 5e-05"));
  EXPECT_THAT(notes, Not(Contains(StartsWith("betas was"))));
  EXPECT_THAT(notes.back(),
              AllOf(HasSubstr("an earlier version"), HasSubstr("moments"), HasSubstr("threads")));
}

/// Values of any kind, of which an option takes those that are of its own.
std::vector<std::string> candidates(const config::Option& option) {
  std::vector<std::string> texts = option.field.choices;
  for (const char* text :
       {"true", "false", "1", "2", "4", "0.25", "0.8,0.9", "7", "1:3", "64G", "h200"}) {
    texts.emplace_back(text);
  }
  return texts;
}

/// What two settings differ in.
struct Differences {
  std::vector<std::string> losses;
  std::vector<std::string> layout;
};

/// The differences that each value of an option makes beside `arguments`.
std::vector<Differences> differences_of(const std::string& name,
                                        const std::vector<std::string>& arguments) {
  const checkpoint::TrainerState before = saved(resolved(arguments));
  std::vector<Differences> all;
  config::Settings probe;
  const config::OptionTable names = config::settings_options(probe);
  const auto named = std::ranges::find_if(
      names.entries(), [&](const auto& entry) { return name_of(entry.option) == name; });
  for (const std::string& text : candidates(named->option)) {
    try {
      const config::OptionValue value = parse_text(named->option.field, text, name);
      config::Settings settings = config::parse(arguments).settings;
      config::OptionTable table = config::settings_options(settings);
      auto* entry = table.with_flag(name) != nullptr ? table.with_flag(name) : table.with_key(name);
      table.assign(*entry, value, config::Source::flag, name);
      const config::Settings now = resolved(settings);
      all.push_back({resume_notes(before, now), layout_differences(before, now)});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
    }
  }
  return all;
}

TEST(Effects, are_said_by_every_option_and_true) {
  config::Settings settings;
  const config::OptionTable table = config::settings_options(settings);
  // The trainer makes steps of epochs; there is one device; what names files or folders is told
  // by what is in them.
  const std::set<std::string> not_seen_here = {"num_train_epochs", "device",
                                               "optimizer.params.adam_w_mode"};
  for (const config::OptionTable::Entry& entry : table.entries()) {
    const config::Option& option = entry.option;
    const std::string& name = name_of(option);
    SCOPED_TRACE(name);
    ASSERT_NE(option.effect, config::Effect::unsaid)
        << "say what another value of it changes when a run goes on with it";
    if (not_seen_here.contains(name)) continue;
    bool names_itself = false;
    bool names_itself_of_layout = false;
    bool changes_losses = false;
    bool changes_layout = false;
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{}, {"--fp16", "--lr_scheduler_type", "cosine"}}) {
      for (const Differences& found : differences_of(name, arguments)) {
        const auto starts = StartsWith(name + " was ");
        names_itself |= ::testing::Matches(Contains(starts))(found.losses);
        names_itself_of_layout |= ::testing::Matches(Contains(starts))(found.layout);
        changes_losses |= !found.losses.empty();
        changes_layout |= !found.layout.empty();
      }
    }
    const bool both = option.effect == config::Effect::losses_and_layout;
    EXPECT_EQ(names_itself, both || option.effect == config::Effect::losses);
    EXPECT_EQ(names_itself_of_layout, both || option.effect == config::Effect::layout);
    const bool changes_any = changes_losses || changes_layout;
    EXPECT_EQ(changes_any, option.effect != config::Effect::nothing &&
                               option.effect != config::Effect::identity);
  }
}

}  // namespace
}  // namespace terrace::train
