#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace terrace {

/// What went wrong, in the sense that decides the program's exit code (see `exit_code`).
enum class ErrorKind {
  internal,       ///< a fault of our own
  usage,          ///< a flag, key or configuration value
  does_not_fit,   ///< memory or disk, known before the start
  out_of_memory,  ///< memory, found out while running
  device,         ///< the device or its driver
  io,             ///< a read, write or flush failed, or returned other bytes than were written
  comm,           ///< a peer is lost or disagrees
  corrupt,        ///< a file that is read is truncated or altered
  data,           ///< a data or model file is missing, unreadable or not what it should be
  numerics,       ///< a result that is not finite, or too many steps without a finite gradient
};

/// The program's exit code for an error of this kind: 0 is success, 130 and 143 are signals.
[[nodiscard]] int exit_code(ErrorKind kind) noexcept;

/// The one exception type. Its message is one sentence for the user: it names the file, tensor or
/// key, what was found, what was expected and what to do. The call site is kept apart from it, for
/// internal faults.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, const char* file, int line)
      : std::runtime_error(message), kind_(kind), file_(file), line_(line) {}

  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  [[nodiscard]] const char* file() const noexcept { return file_; }
  [[nodiscard]] int line() const noexcept { return line_; }

 private:
  ErrorKind kind_;
  const char* file_;
  int line_;
};

/// A compile-time checked format string that remembers where it was written. Defaulted arguments of
/// `__builtin_FILE` are used because `std::source_location` breaks clang-tidy 14.
template <class... Args>
struct SiteFormat {
  template <class S>
  requires std::is_convertible_v<const S&, std::string_view>
  // NOLINTNEXTLINE(google-explicit-constructor): made from the literal at the call.
  consteval SiteFormat(const S& text, const char* file_in = __builtin_FILE(),
                       int line_in = __builtin_LINE())
      : format(text), file(file_in), line(line_in) {}

  fmt::format_string<Args...> format;
  const char* file;
  int line;
};

/// Throws an `Error` of `kind` with the formatted message.
template <class... Args>
[[noreturn]] void fail(ErrorKind kind, std::type_identity_t<SiteFormat<Args...>> format,
                       Args&&... args) {
  throw Error(kind, fmt::format(format.format, std::forward<Args>(args)...), format.file,
              format.line);
}

/// Checks callers and data in every build; the message is built only on failure.
template <class... Args>
void require(bool condition, ErrorKind kind, std::type_identity_t<SiteFormat<Args...>> format,
             Args&&... args) {
  if (!condition) [[unlikely]] {
    throw Error(kind, fmt::format(format.format, std::forward<Args>(args)...), format.file,
                format.line);
  }
}

/// The name of an errno value, as in "ENOSPC (No space left on device)".
[[nodiscard]] std::string errno_name(int code);

}  // namespace terrace
