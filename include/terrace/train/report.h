#pragma once

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terrace/config/facts.h"
#include "terrace/core/line_writer.h"
#include "terrace/core/log.h"

/// What people see on standard error while a run goes on.
namespace terrace::train {

/// Rows of cells as text, columns aligned two spaces apart; columns named in `right` (by index) are
/// flush right. No trailing spaces.
[[nodiscard]] std::string aligned(const std::vector<std::vector<std::string>>& rows,
                                  std::span<const std::size_t> right = {});

/// "Settings" and a line a fact.
[[nodiscard]] std::string settings_table(const std::vector<config::Fact>& facts);

/// Time left, from the steps of the last half minute or so (an exponential mean), so that one slow
/// step does not make it jump. Thread-compatible.
class TimeLeft {
 public:
  void add_step(double seconds);
  /// 0 before the first step.
  [[nodiscard]] double seconds(std::int64_t steps_left) const;

 private:
  double mean_ = 0;
};

/// One line of progress.
struct StepProgress {
  std::int64_t step = 0;
  std::int64_t steps = 0;
  double epoch = 0;
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  std::string waited_for = {};  ///< "disk-read 12%"; empty: nothing worth a word
  double seconds_left = 0;
};
[[nodiscard]] std::string progress_line(const StepProgress& progress);

/// The same of a text that is being written, of at most `tokens_max` tokens. `time_left` has had a
/// token as a step.
[[nodiscard]] std::string generation_line(std::int64_t tokens, std::int64_t tokens_max,
                                          const TimeLeft& time_left);

/// Standard error, with one line at its end that is rewritten in place where that can be: on a
/// terminal, unless NO_COLOR is set or TERM is "dumb". Elsewhere progress is plain lines. Nobody
/// who writes waits for a reader or fails for want of one, as with `LineWriter`. Thread-safe.
class Terminal {
 public:
  /// Finds out whether `stream` can rewrite a line. The stream outlives the terminal, and nobody
  /// else writes to it meanwhile.
  explicit Terminal(std::FILE* stream);
  Terminal(std::FILE* stream, bool rewrites)
      : descriptor_(fileno(stream)), writer_(descriptor_), rewrites_(rewrites) {}
  ~Terminal() { finish(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// Writes text above the live line.
  void print(std::string_view text);
  /// Shows `line` in place of the last progress, or as a line of its own.
  void progress(std::string_view line);
  /// Shows `line` in place of the live line until it is called with an empty one, which brings that
  /// back. Where no line can be rewritten it does nothing.
  void overlay(std::string_view line);
  /// Leaves the live line where it stands; what follows goes below it.
  void finish();
  [[nodiscard]] bool rewrites() const { return rewrites_; }
  /// Lines that nobody got.
  [[nodiscard]] LineWriter::Losses losses() const { return writer_.losses(); }
  /// Log lines, warnings and errors with that word in front. The terminal outlives the sink.
  [[nodiscard]] Log::Sink sink();

 private:
  [[nodiscard]] const std::string& shown() const { return overlay_.empty() ? live_ : overlay_; }
  /// What takes the shown line away.
  [[nodiscard]] std::string_view eraser() const { return shown().empty() ? "" : "\r\x1b[K"; }
  /// As much of it as the terminal has columns for: a line that wraps could not be erased.
  [[nodiscard]] std::string fitting(std::string_view line) const;
  /// Changes one of the lines at the end to `line`.
  void replace(std::string& kept, std::string_view line);

  std::mutex mutex_;
  int descriptor_;
  LineWriter writer_;
  bool rewrites_;
  std::string live_;
  std::string overlay_;
};

}  // namespace terrace::train
