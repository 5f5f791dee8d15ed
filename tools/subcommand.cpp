#include "subcommand.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "environment.h"
#include "terrace/core/error.h"
#include "terrace/core/excerpt.h"
#include "terrace/core/line_writer.h"

namespace terrace::tools {
namespace {

bool contains(const Arguments& arguments, std::string_view word) {
  return std::find(arguments.begin(), arguments.end(), word) != arguments.end();
}

std::string overview(const CommandGroup& group) {
  std::vector<std::vector<std::string>> rows;
  for (const Subcommand& subcommand : group.subcommands) {
    rows.push_back({fmt::format("  {}", subcommand.name), std::string(subcommand.summary)});
  }
  return fmt::format(
      "{}\n\nusage: {} SUBCOMMAND [OPTION ...]\n\n{}\n"
      "{} SUBCOMMAND --help lists its options with units and defaults.\n",
      group.purpose, group.command, train::aligned(rows), group.command);
}

const Subcommand& find(const CommandGroup& group, const std::string& name) {
  std::vector<std::string> names;
  for (const Subcommand& subcommand : group.subcommands) {
    if (subcommand.name == name) return subcommand;
    names.emplace_back(subcommand.name);
  }
  fail(ErrorKind::usage, "\"{}\" is not a subcommand of {}{}: {} --help lists them", excerpt(name),
       group.command, config::did_you_mean(name, names), group.command);
}

}  // namespace

int dispatch(Context& context, const CommandGroup& group, const Arguments& arguments) {
  if (arguments.empty()) {
    context.terminal.print(overview(group));
    return exit_code(ErrorKind::usage);
  }
  const std::string& first = arguments.front();
  if (first == "help" && arguments.size() > 1) {
    Arguments rest(arguments.begin() + 2, arguments.end());
    rest.emplace_back("--help");
    return find(group, arguments[1]).run(context, rest);
  }
  if (first == "--help" || first == "-h" || first == "help") {
    print(overview(group));
    return 0;
  }
  require(!first.starts_with('-'), ErrorKind::usage,
          "{} stands before the subcommand: write {} SUBCOMMAND {}", excerpt(first), group.command,
          excerpt(first));
  return find(group, first).run(context, Arguments(arguments.begin() + 1, arguments.end()));
}

bool parse(Context& context, config::OptionTable& table, std::string_view usage,
           const Arguments& arguments) {
  if (contains(arguments, "--help") || contains(arguments, "-h")) {
    print(fmt::format("usage: {}\n{}", usage, config::help_text(table)));
    return false;
  }
  if (contains(arguments, "--help-config") || contains(arguments, "--help_config")) {
    print(fmt::format("# Options of `{}`\n{}", usage, config::markdown(table)));
    return false;
  }
  config::parse_command_line(table, arguments);
  for (const std::string& note : table.notes()) context.log.write(LogLevel::info, note);
  // Of interest to those who compute: each of them has the option.
  const std::string ignored = describe_ignored_variables();
  if (!ignored.empty() && table.with_flag("threads") != nullptr) {
    context.log.fallback("environment", ignored);
  }
  return true;
}

void add_settings(config::OptionTable& table, config::Settings& settings,
                  std::span<const std::string_view> flags) {
  config::OptionTable all = config::settings_options(settings);
  for (const std::string_view flag : flags) {
    const config::OptionTable::Entry* entry = all.with_flag(flag);
    require(entry != nullptr, ErrorKind::internal, "no option --{}", flag);
    config::Option option = entry->option;
    option.keys.clear();  // these commands read no configuration file
    if (flag == "model") option.help = "model folder, checkpoint or output folder of a run";
    table.add(std::move(option));
  }
}

void print(std::string_view text) {
  const int error = write_text(STDOUT_FILENO, text);
  require(error == 0, ErrorKind::io, "standard output: {}: the result could not be written",
          errno_name(error));
}

void print(std::string_view text, const train::Interrupt& interrupt, const std::string& doing) {
  constexpr int kPauseMs = 100;
  pollfd room{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  // A write that waits for a reader goes on waiting after a signal.
  while (::poll(&room, 1, kPauseMs) <= 0) {
    if (interrupt.signal() != 0) throw train::Stopped(interrupt.signal(), doing);
  }
  print(text);
}

}  // namespace terrace::tools
