#pragma once

#include <string>
#include <vector>

// Variables of the environment decide nothing about results.
//
// Note on the start. OpenMP and oneDNN read theirs as they are loaded, before `main`, and libgomp
// then binds the first thread too, which would pass for the affinity that the program was given. So
// what they must not see is taken out of the environment before the loader initializes them.

namespace terrace::tools {

/// What was taken out, each as "NAME=value".
[[nodiscard]] std::vector<std::string> ignored_variables();

/// The same as a sentence; empty: nothing was.
[[nodiscard]] std::string describe_ignored_variables();

/// Raises the limit of open files as far as this user may: data and models of many files are read
/// faster while they stay open, and the usual limit is a heritage.
void raise_open_files_limit();

/// libgomp reads its wait policy as it is loaded too, and idle threads that spin would take the
/// cores from the optimizer's. So the program runs itself once more with the policy set, unless one
/// is set already: the variable is also the guard against a loop, and a user's own value stays.
/// Where that is impossible the run is slower, not wrong.
void wait_passively(char** argv);

}  // namespace terrace::tools
