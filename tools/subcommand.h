#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/config/options.h"
#include "terrace/config/settings.h"
#include "terrace/core/log.h"
#include "terrace/train/interrupt.h"
#include "terrace/train/report.h"
#include "terrace/train/watch.h"

namespace terrace::tools {

/// What `main` builds and every subcommand receives. Logs go to the terminal (standard error),
/// results to standard output.
struct Context {
  train::Terminal& terminal;
  Log& log;
};

/// What a subcommand that lasts has while it works: the first signal that asks it to stop makes it
/// throw `train::Stopped` where it looks next, and what takes long is told.
struct Attention {
  explicit Attention(Context& context) : watch(interrupt.flag(), context.terminal, context.log) {}

  train::Interrupt interrupt;
  train::Watch watch;
};

using Arguments = std::vector<std::string>;

/// One subcommand. `run` gets what follows the name and returns the exit code; errors are thrown.
struct Subcommand {
  std::string_view name;
  std::string_view summary;  ///< a phrase for the list of subcommands
  int (*run)(Context& context, const Arguments& arguments) = nullptr;
};

/// A command that does nothing but choose among subcommands.
struct CommandGroup {
  std::string_view command;  ///< "terrace", "terrace bench"
  std::string_view purpose;  ///< a sentence
  std::span<const Subcommand> subcommands;
};

/// Runs the subcommand that the first argument names, with the rest. `--help`, `-h`, `help` and
/// `help NAME` write help to standard output; no argument at all writes it to standard error and
/// returns the exit code of wrong usage. Errors: usage, naming the nearest subcommand.
int dispatch(Context& context, const CommandGroup& group, const Arguments& arguments);

/// Reads `arguments` into `table` and logs its notes. With `--help` or `-h` among them it writes
/// `usage` and the table's help, with `--help-config` the table as Markdown, to standard output
/// instead, and returns false.
[[nodiscard]] bool parse(Context& context, config::OptionTable& table, std::string_view usage,
                         const Arguments& arguments);

/// Adds the options of `train` whose first flags are named: what they mean is said once. A model
/// has to have weights, which a preset has not.
void add_settings(config::OptionTable& table, config::Settings& settings,
                  std::span<const std::string_view> flags);

/// Writes a result to standard output. Errors: io, when it cannot be written.
void print(std::string_view text);
/// The same for a part of one, of `doing`, that may have to wait for its reader. Throws
/// `train::Stopped` when there is a signal meanwhile.
void print(std::string_view text, const train::Interrupt& interrupt, const std::string& doing);

// The subcommands of `terrace`, a file each.
int run_train(Context& context, const Arguments& arguments);
int run_evaluate(Context& context, const Arguments& arguments);
int run_export(Context& context, const Arguments& arguments);
int run_generate(Context& context, const Arguments& arguments);
int run_plan(Context& context, const Arguments& arguments);
int run_inspect(Context& context, const Arguments& arguments);
int run_bench(Context& context, const Arguments& arguments);
int run_doctor(Context& context, const Arguments& arguments);
int run_swap(Context& context, const Arguments& arguments);

}  // namespace terrace::tools
