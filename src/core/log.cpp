#include "terrace/core/log.h"

#include <unistd.h>

#include <memory>

#include "terrace/core/line_writer.h"

namespace terrace {
namespace {

Log::Sink to_standard_error() {
  return [writer = std::make_shared<LineWriter>(STDERR_FILENO)](LogLevel level,
                                                                std::string_view line) {
    writer->write(fmt::format("{}{}\n", word_of(level), line));
  };
}

}  // namespace

std::string_view word_of(LogLevel level) {
  switch (level) {
    case LogLevel::warning:
      return "warning: ";
    case LogLevel::error:
      return "error: ";
    default:
      return "";
  }
}

Log::Log() : Log(to_standard_error()) {}

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
