#pragma once

#include <fmt/core.h>

#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace terrace {

enum class LogLevel { debug, info, warning, error };

/// What stands before a line of this level: "warning: ".
[[nodiscard]] std::string_view word_of(LogLevel level);

/// Lines for people, on standard error unless another sink is given. Built once in `main` and
/// handed down; never a global. Thread-safe.
class Log {
 public:
  using Sink = std::function<void(LogLevel, std::string_view line)>;

  /// Writes to standard error, `warning` and `error` with that word in front.
  Log();
  explicit Log(Sink sink) : sink_(std::move(sink)) {}

  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    write(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) {
    write(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
  }
  /// A fall-back taken or a default assumed: logged once for each `key`, and kept so that the run's
  /// record can list it (`fallbacks`).
  void fallback(const std::string& key, const std::string& line);
  /// Every fall-back so far, in order.
  [[nodiscard]] std::vector<std::string> fallbacks() const;

  void write(LogLevel level, std::string_view line);

 private:
  mutable std::mutex mutex_;
  Sink sink_;
  std::unordered_set<std::string> seen_;
  std::vector<std::string> fallbacks_;
};

}  // namespace terrace
