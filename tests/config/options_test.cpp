#include "terrace/config/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "config/parse.h"

namespace terrace::config {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string file_error(const std::string& text) {
  return usage_error([&] { static_cast<void>(parse_file(text)); });
}

std::string flag_error(const std::vector<std::string>& arguments) {
  return usage_error([&] { static_cast<void>(parse(arguments)); });
}

TEST(File, a_misspelt_key_is_refused_at_every_depth_with_line_path_and_nearest_name) {
  EXPECT_THAT(file_error("{\n\n  \"gradient_clipp1ng\": 1.0\n}"),
              AllOf(HasSubstr("line 3: gradient_clipp1ng"), HasSubstr("\"gradient_clipping\"")));
  EXPECT_THAT(file_error("{\"optimizer\": {\n\"tipe\": \"AdamW\"}}"),
              AllOf(HasSubstr("line 2: optimizer.tipe"), HasSubstr("\"type\"")));
  EXPECT_THAT(
      file_error("{\"optimizer\": {\"params\":\n {\n\"weight_deacy\": 1}}}"),
      AllOf(HasSubstr("line 3: optimizer.params.weight_deacy"), HasSubstr("\"weight_decay\"")));
  EXPECT_THAT(file_error("{\"zero_optimisation\": {}}"), HasSubstr("\"zero_optimization\""));
}

TEST(File, a_key_at_the_wrong_level_is_told_where_it_belongs) {
  EXPECT_THAT(file_error("{\"optimizer\": {\"lr\": 1e-4}}"),
              HasSubstr("\"lr\" belongs under \"optimizer.params\""));
  EXPECT_THAT(file_error("{\"zero_optimization\": {\"aio\": {\"queue_depth\": 8}}}"),
              HasSubstr("\"aio\" belongs at the top level"));
  EXPECT_THAT(file_error("{\"offload_param\": {\"device\": \"cpu\"}}"),
              HasSubstr("belongs under \"zero_optimization\""));
}

TEST(File, a_flag_in_the_place_of_a_key_is_told_its_key) {
  EXPECT_THAT(file_error("{\"max_grad_norm\": 1}"), HasSubstr("\"gradient_clipping\""));
  EXPECT_THAT(flag_error({"--set", "max_grad_norm=1"}), HasSubstr("\"gradient_clipping\""));
}

TEST(File, an_empty_item_of_a_list_is_refused_with_line_and_key) {
  EXPECT_THAT(file_error("{\n\"swap\": \"a,,b\"}"), AllOf(HasSubstr("line 2"), HasSubstr("swap")));
}

TEST(File, a_repeated_key_is_refused_with_both_lines) {
  EXPECT_THAT(file_error("{\n\"seed\": 1,\n\"max_steps\": 3,\n\"seed\": 2}"),
              AllOf(HasSubstr("line 4"), HasSubstr("\"seed\" is given twice (first in line 2)")));
}

TEST(File, two_names_of_one_option_must_agree) {
  EXPECT_THAT(file_error("{\"optimizer\": {\"params\": {\"lr\": 1}},"
                         " \"scheduler\": {\"params\": {\"warmup_max_lr\": 2}}}"),
              HasSubstr("contradicts"));
  EXPECT_EQ(parse_file("{\"gradient_dtype\": \"fp32\", \"communication_data_type\": \"fp32\"}")
                .settings.numerics.gradient_dtype,
            DType::f32);
}

TEST(File, a_value_of_another_type_is_refused) {
  EXPECT_THAT(file_error("{\"optimizer\":{\"params\":{\"lr\": \"1e-5\"}}}"),
              AllOf(HasSubstr("the string \"1e-5\""), HasSubstr("must be a number"),
                    HasSubstr("without quotes")));
  EXPECT_THAT(file_error("{\"max_steps\": true}"), HasSubstr("is true, but must be an integer"));
  EXPECT_THAT(file_error("{\"max_steps\": 1.5}"), HasSubstr("the number 1.5"));
  EXPECT_THAT(file_error("{\"gradient_checkpointing\": 1}"), HasSubstr("true or false"));
  EXPECT_THAT(file_error("{\"optimizer\": \"AdamW\"}"), HasSubstr("is a section"));
  EXPECT_THAT(file_error("{\"seed\": {}}"), HasSubstr("is an object, but must be an integer"));
  EXPECT_THAT(file_error("[1]"), HasSubstr("a list"));
  EXPECT_THAT(file_error("{\"optimizer\":{\"params\":{\"betas\": [0.9, \"x\"]}}}"),
              HasSubstr("betas holds the string \"x\", but must be a list of numbers"));
  EXPECT_THAT(file_error("{\"swap\": [1]}"), HasSubstr("swap holds the number 1"));
}

TEST(File, the_line_is_that_of_the_key_whatever_follows_the_value) {
  EXPECT_THAT(file_error("{\n\"seed\": 1,\n\"max_steps\": -7\n\n\n}"), HasSubstr("line 3:"));
  EXPECT_THAT(file_error("{\n\"seed\": 1\n,\n\"optimizer\":\n{\n\"params\": {\"lr\":\n\n-1\n}}}"),
              HasSubstr("line 6: optimizer.params.lr is -1"));
}

TEST(File, what_is_not_json_is_refused_with_its_line) {
  EXPECT_THAT(file_error("{\n\"seed\": 1,\n}"),
              AllOf(HasSubstr("line 3, column 1: "), HasSubstr("JSON")));
  EXPECT_THAT(file_error("{\n\"seed\" 1\n}"), HasSubstr("line 2: not valid JSON near '1'"));
  EXPECT_THAT(flag_error({"--config", "/nowhere/x.json"}), HasSubstr("/nowhere/x.json"));
}

TEST(File, what_is_long_or_deep_is_not_quoted_whole) {
  const std::string many(100'000, '[');
  EXPECT_THAT(file_error("{\n\"seed\": " + many), HasSubstr("line 2: more than 64 lists"));
  for (const std::string& text : {"{\"seed\": \"" + std::string(100'000, 'x') + "\"}",
                                  "{\"seed\": " + std::string(100'000, ' ') + "}",
                                  "{\"seed\": 1" + std::string(100'000, '0') + "}",
                                  "{\"seed\": \"" + std::string(100'000, 'x')}) {
    const std::string error = file_error(text);
    EXPECT_THAT(error, AllOf(HasSubstr("line 1"), HasSubstr("...")));
    EXPECT_LT(error.size(), 1000U);
  }
}

TEST(File, only_the_token_is_cut_out_of_what_the_parser_says) {
  const std::string error = file_error("{\"seed\" \"" + std::string(100'000, 'x') + "\"}");
  EXPECT_THAT(error, HasSubstr("syntax error while parsing object separator - unexpected string "
                               "literal; expected ':'"));
  EXPECT_THAT(error, Not(HasSubstr("last read"))) << "what it is near is said already";
}

TEST(File, takes_64_sections_in_each_other_and_no_more) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  // One is the file's own object.
  EXPECT_THAT(file_error("{\"seed\": " + nested(63) + "}"), HasSubstr("seed is a list"));
  EXPECT_THAT(file_error("{\"seed\": " + nested(64) + "}"), HasSubstr("more than 64 lists"));
}

TEST(Values, that_are_long_are_quoted_by_their_two_ends) {
  const std::string many(100'000, 'q');
  std::vector<std::vector<std::string>> given = {
      {many}, {"--" + many}, {"--set", many}, {"--set", many + "=1"}, {"--load_in_4bit", many}};
  for (const char* flag :
       {"--lr_scheduler_type", "--trace_steps", "--host_memory", "--dtype", "--bf16", "--seed",
        "--lr", "--betas", "--model", "--data", "--swap", "--trace", "--config", "--deepspeed"}) {
    given.push_back({flag, many});
  }
  given.push_back({"--host_memory", many + "%"});
  given.push_back({"--data", many + ",,"});
  for (const auto& arguments : given) {
    const std::string error = flag_error(arguments);
    EXPECT_THAT(error, HasSubstr("qqq...")) << arguments[0].substr(0, 40);
    EXPECT_LT(error.size(), 1000U) << arguments[0].substr(0, 40);
  }
  EXPECT_LT(file_error("{\"model\": \"" + many + "\"}").size(), 1000U);
  EXPECT_EQ(parse({"--model", many.substr(0, 4095)}).settings.model.size(), 4095U);

  std::string prompt;
  OptionTable table;
  table.add({.flags = {"prompt"}, .field = field(prompt), .free_text = true});
  parse_command_line(table, {"--prompt", many});
  EXPECT_EQ(prompt, many);
}

TEST(File, integral_floats_sizes_and_auto_are_accepted) {
  const Settings settings = parse_file(
                                "{\"zero_optimization\": {\"sub_group_size\": 2e9},"
                                " \"host_memory\": \"64GB\", \"disk\": \"80%\","
                                " \"device_memory\": 1024, \"bf16\": true,"
                                " \"train_batch_size\": \"auto\", \"gradient_clipping\": null}")
                                .settings;
  EXPECT_EQ(settings.placement.chunk_elements, 2'000'000'000);
  EXPECT_EQ(settings.placement.host_memory->bytes, 64'000'000'000U);
  EXPECT_EQ(settings.placement.disk->of(1000), 800U);
  EXPECT_EQ(settings.placement.device_memory->bytes, 1024U);
  EXPECT_EQ(settings.numerics.dtype, DType::bf16);
  EXPECT_FALSE(settings.batch.train.has_value());
  EXPECT_EQ(settings.optimizer.max_grad_norm, 1);
}

TEST(Flags, take_underscore_or_dash_an_equals_sign_and_booleans_as_words) {
  const Settings settings =
      parse({"--max-steps=7", "--learning_rate", "1e-4", "--bf16", "True", "--data", "a", "b,c",
             "--swap", "/x,/y", "--gradient-checkpointing", "False", "--overwrite_output_dir"})
          .settings;
  EXPECT_EQ(settings.length.max_steps, 7);
  EXPECT_EQ(settings.optimizer.learning_rate, 1e-4);
  EXPECT_EQ(settings.numerics.dtype, DType::bf16);
  EXPECT_THAT(settings.data.files, ElementsAre("a", "b,c"));
  EXPECT_THAT(settings.placement.swap, ElementsAre("/x", "/y"));
  EXPECT_FALSE(settings.numerics.gradient_checkpointing);
  EXPECT_TRUE(settings.output.overwrite);
  EXPECT_FALSE(parse({"--no-gradient-checkpointing"}).settings.numerics.gradient_checkpointing);
}

TEST(Flags, aliases_of_the_trainer_set_the_same_option) {
  const Settings settings = parse({"--model_name_or_path", "m", "--output_dir", "o",
                                   "--max_seq_length", "64", "--resume_from_checkpoint", "auto"})
                                .settings;
  EXPECT_EQ(settings.model, "m");
  EXPECT_EQ(settings.output.folder, "o");
  EXPECT_EQ(settings.data.max_length, 64);
  EXPECT_EQ(settings.output.resume, "auto");
}

TEST(Flags, an_unknown_flag_is_refused_with_the_nearest_name) {
  EXPECT_THAT(flag_error({"--learnig_rate", "1"}), HasSubstr("\"--learning_rate\""));
  EXPECT_THAT(flag_error({"--max_steps"}), HasSubstr("--max_steps needs a value"));
  EXPECT_THAT(flag_error({"stray"}), HasSubstr("\"stray\""));
  EXPECT_THAT(flag_error({"--max_steps", "ten"}), HasSubstr("must be an integer"));
  EXPECT_THAT(flag_error({"--device", "cdua"}), HasSubstr("\"cuda\""));
  EXPECT_THAT(flag_error({"--validation_fraction", "0.9"}), HasSubstr("between 0 and 0.5"));
}

TEST(Flags, an_empty_value_is_refused_where_it_would_mean_that_nothing_was_given) {
  EXPECT_THAT(flag_error({"--resume", ""}), AllOf(HasSubstr("--resume"), HasSubstr("empty")));
  EXPECT_THAT(flag_error({"--trace="}), AllOf(HasSubstr("--trace"), HasSubstr("empty")));
  EXPECT_THAT(flag_error({"--data", "a", ""}), AllOf(HasSubstr("--data"), HasSubstr("empty")));
  EXPECT_THAT(flag_error({"--swap", "a,,"}), AllOf(HasSubstr("a,,"), HasSubstr("empty")));
  EXPECT_EQ(parse({"--set", "resume="}).settings.output.resume, "");
  std::string prompt = "x";
  OptionTable table;
  table.add({.flags = {"prompt"}, .field = field(prompt), .free_text = true});
  parse_command_line(table, {"--prompt", ""});
  EXPECT_EQ(prompt, "");
}

TEST(Files, a_folder_is_no_configuration) {
  const std::string folder = std::filesystem::temp_directory_path();
  for (const char* flag : {"--config", "--deepspeed"}) {
    EXPECT_THAT(flag_error({flag, folder}), HasSubstr("is a folder"));
  }
}

TEST(Flags, flags_of_the_trainer_that_are_not_ours_are_listed_or_refused) {
  EXPECT_THAT(parse({"--report_to", "none", "--seed", "3"}).notes,
              ElementsAre(AllOf(HasSubstr("--report_to"), HasSubstr("ignored"))));
  EXPECT_THAT(flag_error({"--load_in_4bit", "True"}), HasSubstr("not supported"));
  EXPECT_THAT(flag_error({"--data_seed", "1"}), HasSubstr("--seed"));
}

TEST(Precedence, a_flag_beats_set_beats_the_file_and_each_override_is_told) {
  const std::string file = "{\"seed\": 1, \"max_steps\": 1, \"save_steps\": 1}";
  const Parsed parsed =
      parse_file(file, {"--seed", "3", "--set", "seed=2", "max_steps=2", "--logging_steps", "5"});
  EXPECT_EQ(parsed.settings.numerics.seed, 3);
  EXPECT_EQ(parsed.settings.length.max_steps, 2);
  EXPECT_EQ(parsed.settings.cadence.save_steps, 1);
  EXPECT_EQ(parsed.settings.cadence.logging_steps, 5);
  EXPECT_THAT(parsed.notes, ElementsAre(AllOf(HasSubstr("--set seed = 2 overrides"),
                                              HasSubstr("line 1: seed = 1")),
                                        HasSubstr("--set max_steps = 2 overrides"),
                                        HasSubstr("--seed = 3 overrides --set seed = 2")));
}

TEST(Precedence, repeating_a_value_is_no_override) {
  EXPECT_THAT(parse_file("{\"seed\": 3}", {"--seed", "3"}).notes, IsEmpty());
}

TEST(Precedence, options_of_one_meaning_override_or_contradict_each_other) {
  const Parsed parsed = parse_file("{\"bf16\": {\"enabled\": true}}", {"--fp16"});
  EXPECT_EQ(parsed.settings.numerics.dtype, DType::f16);
  EXPECT_THAT(parsed.notes, Contains(HasSubstr("overrides")));
  EXPECT_THAT(flag_error({"--bf16", "--fp16"}), HasSubstr("contradicts"));
  EXPECT_EQ(parse({"--bf16", "false"}).settings.numerics.dtype, DType::f32);
  EXPECT_EQ(parse({"--bf16", "false", "--fp16", "true"}).settings.numerics.dtype, DType::f16);
  EXPECT_EQ(parse({"--fp16", "true", "--bf16", "false"}).settings.numerics.dtype, DType::f16);
}

TEST(Set, reads_values_as_flags_do_and_refuses_unknown_keys) {
  const Settings settings =
      parse({"--set", "optimizer.params.betas=[0.8, 0.99]", "aio.block_size=2MiB"}).settings;
  EXPECT_THAT(*settings.optimizer.betas, ElementsAre(0.8, 0.99));
  EXPECT_EQ(settings.placement.block_bytes, 2U << 20);
  EXPECT_THAT(flag_error({"--set", "optimizer.params.le=1"}), HasSubstr("\"lr\""));
  EXPECT_THAT(flag_error({"--set", "seed"}), HasSubstr("KEY=VALUE"));
}

TEST(Table, every_name_is_declared_once_and_lower_case_with_underscores) {
  Settings settings;
  const OptionTable table = settings_options(settings);
  std::set<std::string> flags;
  std::set<std::string> keys;
  for (const auto& entry : table.entries()) {
    EXPECT_FALSE(entry.option.help.empty());
    EXPECT_FALSE(entry.option.flags.empty() && entry.option.keys.empty());
    for (const std::string& flag : entry.option.flags) {
      EXPECT_TRUE(flags.insert(flag).second) << flag;
      EXPECT_EQ(flag.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789"), std::string::npos)
          << flag;
    }
    for (const std::string& key : entry.option.keys) EXPECT_TRUE(keys.insert(key).second) << key;
  }
  for (const Foreign& foreign : table.foreign_flags()) {
    EXPECT_TRUE(flags.insert(foreign.name).second) << foreign.name;
  }
  for (const Foreign& foreign : table.foreign_keys()) {
    EXPECT_TRUE(keys.insert(foreign.name).second) << foreign.name;
  }
}

TEST(Table, help_and_documentation_name_every_option_with_unit_and_default) {
  Settings settings;
  const OptionTable table = settings_options(settings);
  const std::string help = help_text(table);
  const std::string document = markdown(table);
  for (const auto& entry : table.entries()) {
    for (const std::string& flag : entry.option.flags) {
      EXPECT_THAT(help, HasSubstr("--" + flag));
      EXPECT_THAT(document, HasSubstr("`--" + flag + "`"));
    }
    if (!entry.option.keys.empty()) {
      EXPECT_THAT(help, HasSubstr(entry.option.keys.front()));
      EXPECT_THAT(document, HasSubstr("`" + entry.option.keys.front() + "`"));
    }
  }
  EXPECT_THAT(help, HasSubstr("(steps; default 500)"));
  EXPECT_THAT(help, HasSubstr("(bytes; default 1.00 MiB)"));
  EXPECT_THAT(help, HasSubstr("default 0.9,0.999"));
}

TEST(DidYouMean, offers_near_names_only) {
  EXPECT_EQ(did_you_mean("sead", {"seed", "save"}), " (did you mean \"seed\"?)");
  EXPECT_EQ(did_you_mean("xyzzy", {"seed", "save_steps"}), "");
}

}  // namespace
}  // namespace terrace::config
