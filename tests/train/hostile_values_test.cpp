#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "config/parse.h"
#include "terrace/config/planning.h"
#include "terrace/core/log.h"
#include "terrace/train/run_setup.h"

// Every option of the table with values that nobody means: each is within the option's domain, or
// is refused by a sentence that names the option.

namespace terrace::train {
namespace {

const std::vector<std::string> kTexts = {"9223372036854775807",
                                         "-9223372036854775808",
                                         "99999999999999999999999",
                                         "999999999999G",
                                         "1e15",
                                         "1e17",
                                         "4294967296",
                                         "1e308",
                                         "-1e308",
                                         "1e400",
                                         "1e-320",
                                         "-1",
                                         "-0.0",
                                         "0",
                                         "0.25",
                                         "0,25",
                                         "nan",
                                         "inf",
                                         "-inf",
                                         "nan%",
                                         "1e30%",
                                         "0x10",
                                         "true",
                                         "maybe",
                                         "",
                                         ",",
                                         "[1,2]",
                                         "1:9223372036854775807"};
const std::vector<std::string> kJson = {"9223372036854775807",
                                        "-9223372036854775808",
                                        "18446744073709551615",
                                        "1e17",
                                        "1e300",
                                        "-1e300",
                                        "1e400",
                                        "1e-320",
                                        "-1",
                                        "-0.0",
                                        "0.25",
                                        "true",
                                        "\"nan\"",
                                        "\"\"",
                                        "\"1e400\"",
                                        "[]",
                                        "[1e300, -1]",
                                        "[\"\"]",
                                        "{}",
                                        "[[]]"};

bool names(const config::Option& option, const std::string& message) {
  auto appears = [&](const std::string& name) {
    return message.find(name) != std::string::npos ||
           message.find(name.substr(name.rfind('.') + 1)) != std::string::npos;
  };
  return std::ranges::any_of(option.keys, appears) || std::ranges::any_of(option.flags, appears);
}

bool is_number(const config::Option& option) {
  const config::OptionType type = option.field.type;
  return option.field.choices.empty() && type != config::OptionType::text &&
         type != config::OptionType::list;
}

/// As a run begins: all that is computed from the settings before anything is reserved. What does
/// not fit is no fault of the value.
void plan_with(config::Settings settings, const std::string& what) {
  settings.model = "tiny";
  settings.placement.profile.clear();
  Log log([](LogLevel, std::string_view) {});
  try {
    config::resolve_batch(settings.batch, settings.ranks.ranks);
    const RunSetup setup = set_up(settings, log, SetupUse::plan);
    (void)config::choose_plan(settings, *setup.model, *setup.layout);
    (void)config::learning_rate_schedule(settings, 10).rate(5);
  } catch (const Error& error) {
    EXPECT_TRUE(error.kind() == ErrorKind::usage || error.kind() == ErrorKind::does_not_fit)
        << what << ": " << error.what();
  }
}

/// Parses, and where that is accepted looks at what has become of the value.
void try_arguments(const config::Option& option, const std::vector<std::string>& arguments,
                   const std::string& what, bool plans = false) {
  try {
    config::Settings settings;
    config::OptionTable table = config::settings_options(settings);
    config::parse_command_line(table, arguments);
    for (const config::OptionTable::Entry& entry : table.entries()) {
      if (name_of(entry.option) != name_of(option)) continue;
      const config::OptionValue value = entry.option.field.get();
      const auto* real = std::get_if<double>(&value);
      const auto* whole = std::get_if<std::int64_t>(&value);
      const double number = real != nullptr    ? *real
                            : whole != nullptr ? static_cast<double>(*whole)
                                               : std::max(0.0, entry.option.minimum);
      EXPECT_TRUE(std::isfinite(number) && number >= entry.option.minimum &&
                  number <= entry.option.maximum)
          << what << " is accepted as " << number;
    }
    config::finalize(settings);
    if (plans && is_number(option)) plan_with(settings, what);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage) << what << ": " << error.what();
    EXPECT_TRUE(names(option, error.what())) << what << ": " << error.what();
  }
}

/// A key and a value as the text of a file.
std::string file_of(std::string key, const std::string& value) {
  std::string text = value;
  for (auto dot = key.rfind('.'); !key.empty(); dot = key.rfind('.')) {
    text = "{\"" + key.substr(dot + 1) + "\": " + text + "}";
    key.resize(dot == std::string::npos ? 0 : dot);
  }
  return text;
}

TEST(HostileValues, are_refused_by_name_or_within_the_domain) {
  config::Settings settings;
  const config::OptionTable table = config::settings_options(settings);
  for (const config::OptionTable::Entry& entry : table.entries()) {
    const config::Option& option = entry.option;
    for (const std::string& text : kTexts) {
      bool plans = true;  // once
      for (const std::string& flag : option.flags) {
        const std::string argument = "--" + flag + "=" + text;
        try_arguments(option, {argument}, argument, std::exchange(plans, false));
      }
      for (const std::string& key : option.keys) {
        const std::string argument = key + "=" + text;
        try_arguments(option, {"--set", argument}, argument, std::exchange(plans, false));
      }
    }
    for (const std::string& key : option.keys) {
      for (const std::string& value : kJson) {
        const std::string text = file_of(key, value);
        const config::TextFile file(text);
        try_arguments(option, {"--config", file.path()}, text);
      }
    }
  }
}

TEST(HostileValues, are_refused_with_the_way_on) {
  using ::testing::HasSubstr;
  auto refusal = [](const std::vector<std::string>& arguments) {
    return config::usage_error([&] { config::parse(arguments); });
  };
  for (const auto& [argument, way] :
       {std::pair("--max_grad_norm=inf", "0 means no clipping"),
        std::pair("--resume=True", "\"auto\" takes the newest"),
        std::pair("--save_steps=0.25", "a share is not taken, a whole count is"),
        std::pair("--learning_rate=0,001", "write 0.001, with a decimal point"),
        std::pair("--learning_rate=1e400", "too large"),
        std::pair("--learning_rate=nan", "it must be finite"),
        std::pair("--max_steps=0x10", "write it in decimal"),
        std::pair("--sub_group_size=64MiB", "64M means 64 million"),
        std::pair("--lr_scheduler_type=cosine_with_min_lr", "--min_lr_ratio"),
        std::pair("--sub_group_size=9223372036854775807", "at most 1e+15 (in elements)")}) {
    const std::string text = argument;
    EXPECT_THAT(refusal({text}), HasSubstr(way)) << text;
    EXPECT_THAT(refusal({text}), HasSubstr(text.substr(0, text.find('=')))) << text;
  }
  EXPECT_THAT(refusal({"--bf16", "maybe"}),
              HasSubstr("--bf16 is \"maybe\", but must be true or false"));
  EXPECT_THAT(config::usage_error([] { config::parse_file(R"({"save_steps": "2k"})"); }),
              HasSubstr("write 2000 without quotes"));
  EXPECT_THAT(config::usage_error(
                  [] { config::parse_file(R"({"optimizer": {"params": {"lr": 1e400}}})"); }),
              HasSubstr("line 1: lr is 1e400, which is too large"));
}

TEST(Counts, take_powers_of_ten) {
  EXPECT_EQ(config::parse({"--sub_group_size", "64M"}).settings.placement.chunk_elements,
            64'000'000);
  EXPECT_EQ(config::parse({"--max_steps", "1.5k"}).settings.length.max_steps, 1500);
  EXPECT_EQ(config::parse({"--max_steps", "2K"}).settings.length.max_steps, 2000);
  EXPECT_EQ(config::parse({"--set", "zero_optimization.sub_group_size=1G"})
                .settings.placement.chunk_elements,
            1'000'000'000);
  EXPECT_EQ(config::parse({"--host_memory", "64M"}).settings.placement.host_memory->bytes,
            64U << 20)
      << "a size is a power of two";
  for (const char* text : {"M", "1.5", "0.0001k", "64 M", "64MB", "1e30T", "1kk"}) {
    EXPECT_THROW(config::parse({"--max_steps", text}), Error) << text;
  }
}

}  // namespace
}  // namespace terrace::train
