#pragma once

#include <gtest/gtest.h>

#include "terrace/core/error.h"

namespace terrace::testing {

/// The error that `call` throws; the test fails where it throws none.
template <class F>
[[nodiscard]] Error error_of(F&& call) {
  try {
    (void)call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return {ErrorKind::internal, "", __FILE__, __LINE__};
}

}  // namespace terrace::testing
