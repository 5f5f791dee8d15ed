#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

// The built program, run as a user runs it.

namespace terrace::tools::testing {

/// What became of a run of the program.
struct Result {
  int code = -1;  ///< exit code, or 128 + the signal that ended it
  std::string out;
  std::string err;
};

/// What a run finds when it begins, beside its arguments.
struct Surroundings {
  std::map<std::string, std::string> environment = {};  ///< set beside what the tests have
  /// Called in the child before the program: limits, signals, descriptors, affinity. It may call
  /// what is safe after a fork alone.
  std::function<void()> prepare = {};
};

/// The program, begun with `arguments` and with its standard output and error in these files. What
/// of its environment is about terminals is as on a user's.
[[nodiscard]] pid_t begin(std::vector<std::string> arguments, const std::string& out,
                          const std::string& err, const Surroundings& surroundings = {});

/// Waits for its end: the exit code, or 128 + the signal.
int exit_code_of(pid_t child);

[[nodiscard]] Result run(std::vector<std::string> arguments, const Surroundings& surroundings = {});

[[nodiscard]] std::string read_and_remove(const std::filesystem::path& path);

/// One line, which begins as every error does.
void expect_one_sentence(const Result& result, int code);

}  // namespace terrace::tools::testing
