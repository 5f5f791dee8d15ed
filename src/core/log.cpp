#include "terrace/core/log.h"

#include <cstdio>

namespace terrace {
namespace {

void to_standard_error(LogLevel level, std::string_view line) {
  const std::string_view prefix = level == LogLevel::warning ? "warning: "
                                  : level == LogLevel::error ? "error: "
                                                             : "";
  const std::string text = fmt::format("{}{}\n", prefix, line);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

Log::Log() : Log(&to_standard_error) {}

void Log::write(LogLevel level, std::string_view line) {
  const std::scoped_lock lock(mutex_);
  sink_(level, line);
}

void Log::fallback(const std::string& key, const std::string& line) {
  const std::scoped_lock lock(mutex_);
  if (!seen_.insert(key).second) return;
  fallbacks_.push_back(line);
  sink_(LogLevel::warning, line);
}

std::vector<std::string> Log::fallbacks() const {
  const std::scoped_lock lock(mutex_);
  return fallbacks_;
}

}  // namespace terrace
