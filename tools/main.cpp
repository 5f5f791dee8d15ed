#include <fmt/format.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <new>
#include <system_error>

#include "environment.h"
#include "standard_descriptors.h"
#include "subcommand.h"
#include "terrace/core/error.h"
#include "terrace/io/entry.h"

namespace terrace::tools {
namespace {

constexpr std::array kSubcommands = {
    Subcommand{"train", "train a model", run_train},
    Subcommand{"plan", "show what a run would take on each tier and move in a step", run_plan},
    Subcommand{"evaluate", "measure a model's loss on data", run_evaluate},
    Subcommand{"generate", "let a model continue a text", run_generate},
    Subcommand{"export", "write the model of a checkpoint as a Hugging Face folder", run_export},
    Subcommand{"inspect", "show what a checkpoint, model folder, tensor file or page store holds",
               run_inspect},
    Subcommand{"bench", "measure what a run's speed depends on", run_bench},
    Subcommand{"doctor", "show what of this machine is usable, and what would mend the rest",
               run_doctor},
    Subcommand{"swap", "list or remove what runs have left in swap folders", run_swap},
};

constexpr CommandGroup kTerrace = {
    "terrace",
    "Terrace trains transformer language models that are larger than the GPU, and larger than RAM.",
    kSubcommands};

/// Shows one line for what ended the program, below the live line, and returns the exit code.
int report(train::Terminal& terminal, ErrorKind kind, const std::string& message) {
  terminal.finish();
  terminal.print(fmt::format("terrace: error: {}", message));
  return exit_code(kind);
}

int run(const Arguments& arguments) {
  train::Terminal terminal(stderr);
  try {
    Log log(terminal.sink());
    Context context{terminal, log};
    if (!arguments.empty() && arguments.front() == "--version") {
      print(fmt::format("terrace {}\n", TERRACE_VERSION));
      return 0;
    }
    return dispatch(context, kTerrace, arguments);
  } catch (const train::Stopped& stopped) {
    terminal.finish();
    terminal.print(fmt::format("terrace: {}", stopped.what()));
    return train::exit_code_of_signal(stopped.signal());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::internal) return report(terminal, error.kind(), error.what());
    return report(
        terminal, error.kind(),
        fmt::format("{} (internal fault at {}:{})", error.what(), error.file(), error.line()));
  } catch (const std::filesystem::filesystem_error& error) {
    return report(terminal, ErrorKind::io,
                  fmt::format("cannot look at {}: {}", error.path1().string(),
                              io::reason_of(error.code().value())));
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) {
      return report(terminal, ErrorKind::internal,
                    fmt::format("{} (internal fault)", error.what()));
    }
    return report(terminal, ErrorKind::out_of_memory,
                  fmt::format("the system refuses another thread: {}; raise the limit of processes "
                              "(ulimit -u; pids.max of the container)",
                              error.code().message()));
  } catch (const std::bad_alloc&) {
    return report(terminal, ErrorKind::out_of_memory,
                  "out of memory: lower the batch, or --host_memory");
  } catch (const std::exception& error) {
    return report(terminal, ErrorKind::internal, fmt::format("{} (internal fault)", error.what()));
  }
}

}  // namespace
}  // namespace terrace::tools

int main(int argc, char** argv) {
  terrace::tools::hold_standard_descriptors();
  // A write beyond the limit of file sizes is then an error, which names file and limit.
  (void)std::signal(SIGXFSZ, SIG_IGN);
  terrace::tools::wait_passively(argv);
  terrace::tools::raise_open_files_limit();
  return terrace::tools::run(terrace::tools::Arguments(argv + 1, argv + argc));
}
