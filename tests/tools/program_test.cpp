#include "program.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "core/parsed_json.h"
#include "io/temporary_folder.h"
#include "terrace/config/options.h"
#include "terrace/config/settings.h"

// Runs the built program.

namespace terrace::tools {
namespace {

using ::testing::AllOf;
using testing::begin;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using testing::exit_code_of;
using testing::expect_one_sentence;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::read_and_remove;
using testing::Result;
using testing::run;
using ::testing::StartsWith;

TEST(Program, without_a_subcommand_lists_them_on_standard_error) {
  const Result result = run({});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, AllOf(HasSubstr("usage: terrace"), HasSubstr("train")));
}

TEST(Program, help_and_version_go_to_standard_output) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"-h"}, {"help"}}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out, HasSubstr("usage: terrace"));
    EXPECT_EQ(result.err, "");
  }
  EXPECT_THAT(run({"--version"}).out, StartsWith("terrace "));
}

TEST(Program, every_subcommand_has_help_by_both_ways) {
  const std::string overview = run({"--help"}).out;
  for (const std::string name : {TERRACE_SUBCOMMANDS}) {
    EXPECT_THAT(overview, HasSubstr("  " + name + " "));
    const Result flag = run({name, "--help"});
    EXPECT_EQ(flag.code, 0) << name << flag.err;
    EXPECT_THAT(flag.out, HasSubstr("usage: terrace " + name)) << name;
    EXPECT_EQ(run({"help", name}).out, flag.out);
  }
}

TEST(Program, help_of_train_has_every_option_with_units_and_defaults) {
  const std::string help = run({"train", "--help"}).out;
  config::Settings settings;
  const config::OptionTable table = config::settings_options(settings);
  for (const auto& entry : table.entries()) {
    for (const std::string& flag : entry.option.flags) EXPECT_THAT(help, HasSubstr("--" + flag));
    if (!entry.option.keys.empty()) {
      EXPECT_THAT(help, HasSubstr(entry.option.keys.front()));
    }
  }
  EXPECT_THAT(help, AllOf(HasSubstr("(steps; default 500)"), HasSubstr("default 5e-05"),
                          HasSubstr("--config FILE"), HasSubstr("--deepspeed FILE")));
}

TEST(Program, what_the_file_system_refuses_is_no_internal_fault) {
  const std::string too_long(300, 'x');
  const Result result = run({"swap", "ls", too_long});
  expect_one_sentence(result, 2);  // so long a name is nobody's
  EXPECT_THAT(result.err, AllOf(HasSubstr(too_long), Not(HasSubstr("internal"))));
}

TEST(Program, documents_its_configuration) {
  const std::string document = run({"train", "--help-config"}).out;
  EXPECT_THAT(document, AllOf(HasSubstr("| `gradient_clipping` |"), HasSubstr("`aio.use_gds`"),
                              HasSubstr("`report_to`")));
}

TEST(Program, wrong_usage_is_one_sentence_and_exit_code_2) {
  const Result subcommand = run({"trian"});
  expect_one_sentence(subcommand, 2);
  EXPECT_THAT(subcommand.err, HasSubstr("\"train\""));
  const Result flag = run({"train", "--learnig_rate", "1"});
  expect_one_sentence(flag, 2);
  EXPECT_THAT(flag.err, HasSubstr("--learning_rate"));
  const Result missing = run({"train", "--model", "tiny"});
  expect_one_sentence(missing, 2);
  EXPECT_THAT(missing.err, HasSubstr("--data is missing"));
  expect_one_sentence(run({"--model", "tiny"}), 2);
  expect_one_sentence(run({"train", "--config", "/nowhere.json"}), 2);
  expect_one_sentence(run({"swap", "list", "/tmp"}), 2);
  for (const char* model : {"missing", "tiny"}) {
    const Result preset = run({"generate", "--model", model, "--prompt", ""});
    expect_one_sentence(preset, 2);
    EXPECT_THAT(preset.err, AllOf(HasSubstr("give a model folder"), HasSubstr("no weights"),
                                  Not(HasSubstr("llama"))));
  }
  EXPECT_THAT(run({"evaluate", "--help"}).out, Not(HasSubstr("preset")));
}

TEST(Program, plans_a_preset_without_touching_weights_or_disks) {
  const Result text = run({"plan", "--model", "tiny", "--max_length", "64"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("Memory"), HasSubstr("AdamW, betas 0.9 and 0.999")));
  const Result json = run({"plan", "--model", "tiny", "--json"});
  EXPECT_THAT(json.out, AllOf(StartsWith("{"), HasSubstr("\"bytes_per_step\"")));
}

TEST(Program, a_plan_says_what_space_it_needs_and_what_its_drives_wear) {
  const std::vector<std::string> with_disk = {"plan",   "--model",        "tiny",
                                              "--swap", "/another/nvme",  "--offload_optimizer",
                                              "nvme",   "--rated_writes", "1TB"};
  const Result text = run(with_disk);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("page store"), HasSubstr("a checkpoint, at most 3 at once"),
                              HasSubstr("of what the drives are rated for")));
  std::vector<std::string> as_json = with_disk;
  as_json.push_back("--json");
  const auto json = terrace::testing::parse_json(run(as_json).out);
  const auto parameters = json.at("parameters").get<double>();
  const auto& space = json.at("free_space_bytes");
  EXPECT_GT(space.at("page_store").get<double>(), 2 * 12 * parameters) << "two extents a page";
  EXPECT_GT(space.at("checkpoint").get<double>(), 12 * parameters);
  EXPECT_GT(space.at("checkpoint").get<double>(), space.at("final_model").get<double>());
  EXPECT_EQ(space.at("checkpoints_at_once"), 3);
  const auto written = json.at("written_in_1000_steps").get<double>();
  EXPECT_EQ(written, 1000 * json.at("bytes_per_step").at("disk-write").get<double>());
  EXPECT_NEAR(json.at("percent_of_rated_writes").get<double>(), written / 1e12 * 100, 1e-9);

  const auto none = terrace::testing::parse_json(
      run({"plan", "--model", "tiny", "--save_steps", "0", "--json"}).out);
  EXPECT_EQ(none.at("free_space_bytes").at("page_store"), 0);
  EXPECT_EQ(none.at("free_space_bytes").at("checkpoint"), 0);
  EXPECT_TRUE(none.at("percent_of_rated_writes").is_null());
  const Result zero = run({"plan", "--model", "tiny", "--rated_writes", "0"});
  expect_one_sentence(zero, 2);
  EXPECT_THAT(zero.err, HasSubstr("1400TB"));
}

TEST(Program, a_plan_predicts_its_step_from_a_profile_and_names_it) {
  const std::string without = run({"plan", "--model", "tiny"}).out;
  EXPECT_THAT(without, AllOf(HasSubstr("Time unknown"), HasSubstr("terrace bench all")));
  const Result assumed = run({"plan", "--model", "tiny", "--bf16", "--profile", "h200"});
  EXPECT_EQ(assumed.code, 0) << assumed.err;
  EXPECT_THAT(assumed.out, AllOf(HasSubstr("Predicted step"), HasSubstr("profile: assumed")));

  const std::string file = std::filesystem::temp_directory_path() /
                           ("terrace-profile-" + std::to_string(getpid()) + ".json");
  const Result measured = run({"bench", "all", "--profile", file, "--model", "tiny", "--rows", "1",
                               "--sequence", "32", "--parameters", "4096", "--repetitions", "1"});
  EXPECT_EQ(measured.code, 0) << measured.err;
  EXPECT_THAT(measured.out, AllOf(HasSubstr("host to device"), HasSubstr("not measured")));
  const Result json = run({"plan", "--model", "tiny", "--json", "--profile", file});
  EXPECT_EQ(json.code, 0) << json.err;
  EXPECT_THAT(json.out, AllOf(HasSubstr("\"profile\": \"measured on "), HasSubstr("\"busiest\"")));
  // Its drives were not measured, so that a plan with a disk has no time.
  const Result disk = run({"plan", "--model", "tiny", "--offload_optimizer", "nvme", "--swap",
                           "/tmp", "--profile", file});
  expect_one_sentence(disk, 2);
  EXPECT_THAT(disk.err, AllOf(HasSubstr("disk_read_bytes_per_second"), HasSubstr("--path DIR")));
  std::filesystem::remove(file);
}

TEST(Program, a_profile_that_cannot_be_written_or_read_is_refused_first) {
  const Result written = run({"bench", "all", "--profile", "/nowhere/node.json"});
  expect_one_sentence(written, 5);
  EXPECT_THAT(written.err, AllOf(HasSubstr("/nowhere/node.json"), Not(HasSubstr("measuring"))));
  const Result folder = run({"bench", "all", "--profile", "/tmp"});
  expect_one_sentence(folder, 5);
  EXPECT_THAT(folder.err, AllOf(HasSubstr("EISDIR"), Not(HasSubstr("measuring"))));
  const Result read =
      run({"plan", "--model", "llama-70b", "--host_memory", "1M", "--profile", "h2"});
  expect_one_sentence(read, 2);
  EXPECT_THAT(read.err, HasSubstr("h200"));
}

TEST(Program, plans_for_ranks_that_are_not_here) {
  const Result text = run({"plan", "--model", "tiny", "--ranks", "8", "--zero_stage", "2"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("8, ZeRO stage 2"), HasSubstr("State of each rank"),
                              HasSubstr("collective")));
  const Result json = run({"plan", "--model", "tiny", "--ranks", "8", "--json"});
  EXPECT_THAT(json.out, AllOf(HasSubstr("\"zero_stage\": 3"), HasSubstr("\"state_bytes\"")));
  const Result off = run(
      {"plan", "--model", "tiny", "--ranks", "8", "--zero_stage", "1", "--offload_param", "cpu"});
  expect_one_sentence(off, 2);
  EXPECT_THAT(off.err, HasSubstr("--zero_stage 3"));
  const Result none = run({"plan", "--model", "tiny", "--ranks", "0"});
  expect_one_sentence(none, 2);
  EXPECT_THAT(none.err, HasSubstr("--ranks"));
}

TEST(Program, a_plan_over_its_budget_is_exit_code_3_and_names_both_figures) {
  const Result result = run({"plan", "--model", "small", "--host_memory", "1M"});
  expect_one_sentence(result, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("1.00 MiB"), HasSubstr("--swap")));
}

TEST(Program, inspect_refuses_what_is_not_there_with_exit_code_4) {
  expect_one_sentence(run({"inspect", "/nowhere"}), 4);
  const Result preset = run({"plan", "--model", "tinny"});
  expect_one_sentence(preset, 2);
  EXPECT_THAT(preset.err, HasSubstr("tiny"));
}

TEST(Program, doctor_tries_a_swap_folder_and_leaves_nothing_there) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("terrace-doctor-test-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const Result result = run({"doctor", "--swap", folder.string(), "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("\"threads\""), HasSubstr("\"NUMA nodes\""),
                                HasSubstr("disk " + folder.string())));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove(folder);
  expect_one_sentence(run({"doctor", "--swap", folder.string()}), 2);
}

TEST(Program, bench_optimizer_measures_every_format_and_instruction_set_beside_its_streams) {
  const Result result = run({"bench", "optimizer", "--parameters", "100000", "--state",
                             "fp32,split,split+bf16_moments", "--gradient", "bf16,fp32",
                             "--threads", "1", "--repetitions", "1", "--every_target", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = terrace::testing::parse_json(result.out);
  EXPECT_EQ(json.at("schema"), "terrace.bench.optimizer/1");
  // Bytes read and written a parameter: master and moments twice, gradient, new parameter; the old
  // one too in split.
  std::map<std::pair<std::string, std::string>, int> left = {{{"fp32", "bf16"}, 28},
                                                             {{"fp32", "fp32"}, 30},
                                                             {{"split", "bf16"}, 26},
                                                             {{"split", "fp32"}, 28},
                                                             {{"split+bf16_moments", "bf16"}, 18},
                                                             {{"split+bf16_moments", "fp32"}, 20}};
  std::set<std::string> targets;
  for (const auto& variant : json.at("variants")) {
    const std::pair format(variant.at("state").get<std::string>(),
                           variant.at("gradient").get<std::string>());
    ASSERT_EQ(left.count(format), 1U) << format.first;
    EXPECT_EQ(variant.at("bytes_per_parameter"), left[format]);
    EXPECT_NEAR(variant.at("gb_per_s").get<double>(),
                variant.at("parameters_per_second").get<double>() * left[format] * 1e-9, 1e-6);
    EXPECT_GT(variant.at("stream_gb_per_s"), 0);
    EXPECT_GT(variant.at("fraction_of_stream"), 0);
    EXPECT_EQ(variant.at("threads"), 1);
    targets.insert(variant.at("target"));
  }
  EXPECT_EQ(json.at("variants").size(), targets.size() * left.size());
  expect_one_sentence(run({"bench", "optimizer", "--parameters", "0"}), 2);
}

TEST(Program, bench_disk_measures_every_way_of_moving_pages_and_leaves_nothing) {
  const terrace::testing::TemporaryFolder folder;
  const Result result =
      run({"bench", "disk", "--path", folder.path(), "--size", "16M", "--bs", "512K", "--iodepth",
           "4", "--repetitions", "2", "--raw", "--buffered", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const nlohmann::json json = terrace::testing::parse_json(result.out);
  for (const nlohmann::json& way : {json, json.at("raw"), json.at("looked")}) {
    for (const std::string pass : {"read", "write", "mixed"}) {
      EXPECT_GT(way.at(pass + "_gb_per_s").at("median"), 0.0) << pass;
      EXPECT_GT(way.at(pass + "_cpu_seconds_per_gib"), 0.0) << pass;
      EXPECT_EQ(json.at("times_raw").at(pass).size(), 2U) << pass;
    }
    EXPECT_GT(way.at("write_seconds"), way.at("flush_seconds"));
  }
  EXPECT_GT(json.at("manifest_seconds"), 0.0);
  EXPECT_EQ(json.at("raw").at("manifest_seconds"), 0.0);
}

TEST(Program, an_export_says_that_the_run_has_gone_on_since_its_checkpoint) {
  const terrace::testing::TemporaryFolder folder;
  std::ofstream(folder / "text.txt") << std::string(2000, 'a');
  const auto train = [&](const char* steps, const char* save_steps) {
    return run({"train", "--model", "tiny", "--data", folder / "text.txt", "--output",
                folder / "run", "--max_length", "16", "--per_device_train_batch_size", "1",
                "--resume", "auto", "--max_steps", steps, "--save_steps", save_steps});
  };
  ASSERT_EQ(train("1", "1").code, 0);
  const Result newest = run({"export", folder / "run", folder / "one"});
  EXPECT_EQ(newest.code, 0) << newest.err;
  EXPECT_THAT(newest.err, Not(HasSubstr("has reached")));
  ASSERT_EQ(train("2", "0").code, 0);
  const Result older = run({"export", folder / "run", folder / "two"});
  EXPECT_EQ(older.code, 0) << older.err;
  EXPECT_THAT(older.out, HasSubstr("the model of step 1"));
  EXPECT_THAT(older.err, AllOf(HasSubstr("has reached step 2"), HasSubstr("finished run")));
}

/// The side of a new terminal that its user sees; -1: there are none here.
int open_terminal() {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) return -1;
  const bool opens = ::grantpt(terminal) == 0 && ::unlockpt(terminal) == 0 &&
                     ::access(::ptsname(terminal), R_OK | W_OK) == 0;
  if (opens) return terminal;
  ::close(terminal);
  return -1;
}

/// What `arguments` write to a terminal as standard error; to it goes standard output as well, or
/// to a file, whose contents are `out`.
Result run_on_terminal(std::vector<std::string> arguments, bool out_too) {
  Result result;
  const int terminal = open_terminal();
  if (terminal < 0) {
    ADD_FAILURE() << "there is no other pseudo-terminal";
    return result;
  }
  const std::string name = ::ptsname(terminal);
  const std::string out =
      std::filesystem::temp_directory_path() / ("terrace-terminal-" + std::to_string(getpid()));
  const pid_t child = begin(std::move(arguments), out_too ? name : out, name);
  char bytes[4096];
  // Ends with an error when the last who has it open as its terminal has closed it.
  for (ssize_t got = 0; (got = ::read(terminal, bytes, sizeof bytes)) > 0;) {
    result.err.append(bytes, static_cast<std::size_t>(got));
  }
  ::close(terminal);
  result.code = exit_code_of(child);
  if (!out_too) result.out = read_and_remove(out);
  return result;
}

TEST(Program, generate_says_how_far_it_is_where_a_terminal_does_not_show_the_text) {
  const int terminal = open_terminal();
  if (terminal < 0) GTEST_SKIP() << "there are no pseudo-terminals";
  ::close(terminal);
  const terrace::testing::TemporaryFolder folder;
  std::ofstream(folder / "text.txt") << std::string(2000, 'a');
  ASSERT_EQ(
      run({"train", "--model", "tiny", "--data", folder / "text.txt", "--output", folder / "run",
           "--max_length", "16", "--per_device_train_batch_size", "1", "--max_steps", "1"})
          .code,
      0);
  const std::vector<std::string> generate = {
      "generate", "--model",      folder / "run", "--prompt",      "begin", "--max_new_tokens",
      "20",       "--max_length", "16",           "--stop_at_end", "false"};
  const Result to_file = run_on_terminal(generate, false);
  EXPECT_EQ(to_file.code, 0) << to_file.err;
  EXPECT_THAT(to_file.out, StartsWith("begin"));
  EXPECT_THAT(to_file.out, Not(HasSubstr("token ")));
  EXPECT_THAT(to_file.err, AllOf(HasSubstr("token 2/20"), HasSubstr(" left"),
                                 ContainsRegex("token 20/20  [0-9.k]+ tokens/s\r?\n$")));
  const Result to_terminal = run_on_terminal(generate, true);
  EXPECT_THAT(to_terminal.err, AllOf(HasSubstr("begin"), Not(HasSubstr("tokens/s"))))
      << "the text shows itself";
  const Result to_files = run(generate);
  EXPECT_EQ(to_files.out, to_file.out);
  EXPECT_THAT(to_files.err, Not(HasSubstr("tokens/s"))) << "nobody looks on";
}

TEST(Program, one_folder_is_not_measured_or_tried_as_two) {
  const terrace::testing::TemporaryFolder folder;
  const std::string twice = folder.path().string() + "," + folder.path().string() + "/.";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"bench", "disk", "--path", twice},
        {"bench", "all", "--profile", folder / "node.json", "--path", twice},
        {"doctor", "--swap", twice}}) {
    const Result result = run(command);
    expect_one_sentence(result, 2);
    EXPECT_THAT(result.err, HasSubstr("twice"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Program, lists_a_run_once_however_its_folder_is_named_and_what_it_is_where_that_is_known) {
  const terrace::testing::TemporaryFolder folder;
  const std::string swap = folder.path();
  // A folder without a record is what a kill leaves at the end of a removal.
  std::filesystem::create_directory(folder / "terrace-run-7-0");
  const Result table = run({"swap", "ls", swap, swap + "/."});
  EXPECT_THAT(table.out, ContainsRegex("dead +0 B +- +- +- +- +" + swap + "/terrace-run-7-0\n$"));
  EXPECT_EQ(std::ranges::count(table.out, '\n'), 2) << table.out;
  EXPECT_THAT(run({"swap", "clean", swap, swap + "/."}).out, HasSubstr("1 run removed"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Program, lists_an_empty_swap_folder_and_refuses_a_missing_one) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("terrace-swap-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  EXPECT_THAT(run({"swap", "ls", folder.string()}).out, HasSubstr("no run"));
  EXPECT_THAT(run({"swap", "ls", folder.string(), "--json"}).out, HasSubstr("\"runs\": []"));
  EXPECT_THAT(run({"swap", "clean", folder.string()}).out, HasSubstr("0 runs removed"));
  std::ofstream(folder / "file").close();
  const Result file = run({"swap", "ls", folder / "file"});
  expect_one_sentence(file, 2);
  EXPECT_THAT(file.err, HasSubstr("is not a folder: name one that was given to train as --swap"));
  std::filesystem::remove(folder / "file");
  std::filesystem::remove(folder);
  const Result missing = run({"swap", "ls", folder.string()});
  expect_one_sentence(missing, 2);
  EXPECT_THAT(missing.err, HasSubstr(folder.string()));
}

}  // namespace
}  // namespace terrace::tools
