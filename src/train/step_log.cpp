#include "step_log.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "terrace/core/json.h"

namespace terrace::train {
namespace {

/// What a row ends with, and what a validation loss is put in the place of.
constexpr std::string_view kRowEnd = "}\n";

}  // namespace

StepLog::StepLog(const std::filesystem::path& path, const plan::Plan& plan, std::int64_t step,
                 std::span<const checkpoint::StepRow> carried, std::int64_t after)
    : plan_(plan) {
  std::vector<checkpoint::KnownRow> known;
  for (const checkpoint::StepRow& row : carried) {
    known.push_back({row, metrics_line(row, nullptr, plan_)});
  }
  settled_ = checkpoint::settle_rows(path, step, known, after);
  if (settled_.last && settled_.last->step == step) last_ = settled_.last;
  file_.emplace(path);
}

std::vector<checkpoint::StepRow> StepLog::commit(const checkpoint::StepRow& row) {
  const std::scoped_lock lock(mutex_);
  carried_.push_back(row);
  return carried_;
}

void StepLog::write(const checkpoint::StepRow& row, const StepTiming& timing) {
  file_->append(metrics_line(row, &timing, plan_) + "\n");
  last_ = row;
  const bool carries = [&] {
    const std::scoped_lock lock(mutex_);
    return !carried_.empty();
  }();
  // What no commit carries becomes durable with the next checkpoint.
  if (++unsynced_ >= kUnsyncedMax && carries) sync();
}

void StepLog::add_evaluation(double loss) {
  last_->eval_loss = loss;
  {
    // Whatever becomes of the line now, the commits to come have the row.
    const std::scoped_lock lock(mutex_);
    const auto same = std::ranges::find(carried_, last_->step, &checkpoint::StepRow::step);
    if (same != carried_.end()) {
      *same = *last_;
    } else {
      carried_.push_back(*last_);
    }
  }
  const Json value = std::isfinite(loss) ? Json(loss) : Json(nullptr);
  file_->replace_end(kRowEnd.size(), ",\"eval_loss\":" + json_line(value) + std::string(kRowEnd));
  ++unsynced_;
}

void StepLog::sync() {
  file_->sync();
  unsynced_ = 0;
  const std::scoped_lock lock(mutex_);
  std::erase_if(carried_,
                [&](const checkpoint::StepRow& row) { return last_ && row.step <= last_->step; });
}

}  // namespace terrace::train
