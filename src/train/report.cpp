#include "terrace/train/report.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "terrace/core/units.h"

namespace terrace::train {
namespace {

/// Cells are UTF-8: a continuation byte takes no column.
std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

/// Of a value that is none, that: its digits would pass for a result.
std::string figure(std::string digits, double value) {
  return std::isfinite(value) ? std::move(digits) : "not finite";
}

}  // namespace

std::string aligned(const std::vector<std::vector<std::string>>& rows,
                    std::span<const std::size_t> right) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  std::string result;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - columns_of(row[i]), ' ');
      const bool is_right = std::find(right.begin(), right.end(), i) != right.end();
      if (i > 0) line += "  ";
      line += is_right ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + "\n";
  }
  return result;
}

std::string settings_table(const std::vector<config::Fact>& facts) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, value] : facts) rows.push_back({"  " + name, value});
  return "Settings\n" + aligned(rows);
}

void TimeLeft::add_step(double seconds) {
  constexpr double kMemorySeconds = 30;  // how much of the past counts
  const double weight = mean_ == 0 ? 1 : std::clamp(seconds / kMemorySeconds, 0.02, 0.5);
  mean_ += weight * (seconds - mean_);
}

double TimeLeft::seconds(std::int64_t steps_left) const {
  return mean_ * static_cast<double>(std::max<std::int64_t>(0, steps_left));
}

std::string progress_line(const StepProgress& progress) {
  std::string line = fmt::format(
      "step {}/{}  epoch {:.2f}  loss {}  norm {}  lr {:.3g}  {} tokens/s  {}/step", progress.step,
      progress.steps, progress.epoch, figure(fmt::format("{:.4f}", progress.loss), progress.loss),
      figure(fmt::format("{:.3g}", progress.grad_norm), progress.grad_norm), progress.learning_rate,
      format_count(static_cast<std::uint64_t>(std::max(0.0, progress.tokens_per_second))),
      format_duration(progress.step_seconds));
  if (!progress.waited_for.empty()) line += fmt::format("  waited {}", progress.waited_for);
  if (progress.step < progress.steps) {
    line += fmt::format("  {} left", format_duration(progress.seconds_left));
  }
  return line;
}

std::string generation_line(std::int64_t tokens, std::int64_t tokens_max,
                            const TimeLeft& time_left) {
  std::string line = fmt::format("token {}/{}", tokens, tokens_max);
  if (const double seconds = time_left.seconds(1); seconds > 0) {
    const double rate = 1 / seconds;
    line +=
        fmt::format("  {} tokens/s", rate < 10 ? fmt::format("{:.1f}", rate)
                                               : format_count(static_cast<std::uint64_t>(rate)));
  }
  if (tokens < tokens_max) {
    line +=
        fmt::format("  at most {} left", format_duration(time_left.seconds(tokens_max - tokens)));
  }
  return line;
}

Terminal::Terminal(std::FILE* stream) : Terminal(stream, false) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  rewrites_ = isatty(descriptor_) == 1 && (no_color == nullptr || *no_color == '\0') &&
              term != nullptr && std::string_view(term) != "dumb";
}

void Terminal::print(std::string_view text) {
  const std::scoped_lock lock(mutex_);
  writer_.write(fmt::format("{}{}{}{}", eraser(), text, text.ends_with('\n') ? "" : "\n", shown()));
}

std::string Terminal::fitting(std::string_view line) const {
  winsize size{};
  const bool known = ioctl(descriptor_, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return std::string(line.substr(0, known ? size.ws_col - std::size_t{1} : std::size_t{79}));
}

void Terminal::replace(std::string& kept, std::string_view line) {
  const std::scoped_lock lock(mutex_);
  if (line.empty() && kept.empty()) return;
  std::string text(eraser());
  kept = fitting(line);
  writer_.write(text + shown());
}

void Terminal::progress(std::string_view line) { rewrites_ ? replace(live_, line) : print(line); }

void Terminal::overlay(std::string_view line) {
  if (rewrites_) replace(overlay_, line);
}

void Terminal::finish() {
  overlay("");
  const std::scoped_lock lock(mutex_);
  if (!live_.empty()) writer_.write("\n");
  live_.clear();
}

Log::Sink Terminal::sink() {
  return [this](LogLevel level, std::string_view line) {
    print(fmt::format("{}{}", word_of(level), line));
  };
}

}  // namespace terrace::train
