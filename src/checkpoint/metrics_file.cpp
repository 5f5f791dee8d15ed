#include "terrace/checkpoint/metrics_file.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <set>
#include <utility>

#include "terrace/core/json.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

constexpr std::uint64_t kMetricsBytesMax = 16ULL << 30;
constexpr const char* kEvalLoss = "eval_loss";

std::optional<std::int64_t> step_in(const Json& row) {
  const auto step = row.find("step");
  if (step == row.end() || !step->is_number()) return std::nullopt;
  return step->get<std::int64_t>();
}

double number_in(const Json& row, const char* key) {
  const auto value = row.find(key);
  return value != row.end() && value->is_number() ? value->get<double>()
                                                  : std::numeric_limits<double>::quiet_NaN();
}

std::int64_t count_in(const Json& row, const char* key) {
  const auto value = row.find(key);
  return value != row.end() && value->is_number() ? value->get<std::int64_t>() : 0;
}

StepRow row_from(const Json& json, std::int64_t step) {
  StepRow row{.step = step,
              .epoch = number_in(json, "epoch"),
              .loss = number_in(json, "loss"),
              .grad_norm = number_in(json, "grad_norm"),
              .learning_rate = number_in(json, "lr"),
              .tokens = count_in(json, "tokens"),
              .skipped = count_in(json, "skipped"),
              .nonfinite = {},
              .eval_loss = {}};
  if (const auto name = json.find("nonfinite"); name != json.end() && name->is_string()) {
    row.nonfinite = name->get<std::string>();
  }
  if (json.contains(kEvalLoss)) row.eval_loss = number_in(json, kEvalLoss);
  return row;
}

/// The file as it is to be, line by line.
class Settling {
 public:
  Settling(std::int64_t step, std::span<const KnownRow> known, std::int64_t after)
      : step_(step), after_(after), known_(known) {}

  /// Takes a line of the file, with its end; a last one that was cut short has none.
  void take(std::string_view line) {
    const std::optional<Json> json = line.ends_with('\n') ? json_from(line) : std::nullopt;
    if (!json || !json->is_object()) {
      ++settled_.dropped;
      return;
    }
    const std::optional<std::int64_t> step = step_in(*json);
    if (!step) {
      text_ += line;
      settled_.last.reset();
      return;
    }
    if (*step > step_ || seen_.contains(*step)) {
      ++settled_.dropped;
      return;
    }
    add_known_before(*step);
    if (next_ < known_.size() && known_[next_].row.step == *step) {
      const StepRow& known = known_[next_++].row;
      if (known.eval_loss && !json->contains(kEvalLoss)) return add_evaluated(*json, known);
    }
    add(row_from(*json, *step), line);
  }

  void finish() { add_known_before(std::numeric_limits<std::int64_t>::max()); }

  [[nodiscard]] bool changes() const { return settled_.dropped + settled_.restored > 0; }
  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] SettledRows take_settled() { return std::move(settled_); }

 private:
  void add(const StepRow& row, std::string_view line) {
    seen_.insert(row.step);
    text_ += line;
    if (row.step > after_) settled_.rows.push_back(row);
    settled_.last = row;
  }

  void add_known_before(std::int64_t step) {
    for (; next_ < known_.size() && known_[next_].row.step < step; ++next_) {
      const KnownRow& known = known_[next_];
      if (known.row.step > step_ || seen_.contains(known.row.step)) continue;
      add(known.row, known.line + "\n");
      ++settled_.restored;
    }
  }

  void add_evaluated(Json json, const StepRow& known) {
    json[kEvalLoss] = *known.eval_loss;
    add(row_from(json, known.step), json_line(json) + "\n");
    ++settled_.restored;
  }

  std::int64_t step_;
  std::int64_t after_;
  std::span<const KnownRow> known_;
  std::size_t next_ = 0;  ///< of `known_`
  std::set<std::int64_t> seen_;
  std::string text_;
  SettledRows settled_;
};

}  // namespace

std::int64_t last_logged_step(const std::filesystem::path& metrics) {
  std::int64_t last = 0;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const std::optional<Json> row = json_from(line);
    if (row && row->is_object()) last = std::max(last, step_in(*row).value_or(0));
  }
  return last;
}

SettledRows settle_rows(const std::filesystem::path& metrics, std::int64_t step,
                        std::span<const KnownRow> known, std::int64_t after) {
  const std::string text =
      io::is_there(metrics) ? io::read_file(metrics, kMetricsBytesMax, ErrorKind::io) : "";
  Settling settling(step, known, after);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t newline = text.find('\n', begin);
    const std::size_t end = newline == std::string::npos ? text.size() : newline + 1;
    settling.take(std::string_view(text).substr(begin, end - begin));
    begin = end;
  }
  settling.finish();
  if (settling.changes()) io::write_file(metrics, settling.text());
  return settling.take_settled();
}

}  // namespace terrace::checkpoint
