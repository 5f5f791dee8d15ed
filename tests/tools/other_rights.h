#pragma once

#include <string>

// What a child of the tests does before the program, so that it has other rights than the tests
// have: for `Surroundings::prepare`. A refusal ends the child with `kNotAllowed`.

namespace terrace::tools::testing {

/// The exit code of a child that could not get the rights that it should have.
inline constexpr int kNotAllowed = 126;

/// As root, becomes a user to whom nothing belongs; another user is one already.
void become_another_user();

/// Lays an empty file system, which cannot be written to, over the folder, for this process and
/// what it starts.
void hide(const char* folder);

}  // namespace terrace::tools::testing
