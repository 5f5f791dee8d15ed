#include "terrace/core/error.h"

#include <cstring>

namespace terrace {

int exit_code(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::internal:
      return 1;
    case ErrorKind::usage:
      return 2;
    case ErrorKind::does_not_fit:
      return 3;
    case ErrorKind::data:
    case ErrorKind::corrupt:
      return 4;
    case ErrorKind::io:
      return 5;
    case ErrorKind::comm:
      return 6;
    case ErrorKind::numerics:
      return 7;
    case ErrorKind::device:
    case ErrorKind::out_of_memory:
      return 8;
  }
  return 1;
}

std::string errno_name(int code) {
  const char* name = strerrorname_np(code);
  return fmt::format("{} ({})", name != nullptr ? name : "errno", strerror(code));
}

}  // namespace terrace
