#include "wait_causes.h"

#include <algorithm>

namespace terrace::runtime {

using plan::Lane;

WaitCauses::WaitCauses(const plan::Schedule& schedule)
    : schedule_(schedule), before_(schedule.tasks.size()) {
  const int count = static_cast<int>(schedule.tasks.size());
  std::array<plan::Wait, plan::kLanes> last;
  for (int index = 0; index < count; ++index) {
    last[static_cast<std::size_t>(task(index).lane)] = {index, 1};  // of the step before
  }
  for (int index = 0; index < count; ++index) {
    plan::Wait& on_lane = last[static_cast<std::size_t>(task(index).lane)];
    before_[static_cast<std::size_t>(index)] = on_lane;
    on_lane = {index, 0};
  }
}

WaitCauses::Cause WaitCauses::last_cause(int index, int back, Runs runs, bool with_lane) const {
  Cause last;
  const auto consider = [&](const plan::Wait& wait, std::int64_t TaskSpan::*let_go) {
    const int run = back + wait.steps_back;
    if (run >= static_cast<int>(runs.size())) return;
    const std::int64_t end_us =
        runs[static_cast<std::size_t>(run)][static_cast<std::size_t>(wait.task)].*let_go;
    if (last.task < 0 || end_us > last.end_us) last = {wait.task, run, end_us};
  };
  for (const plan::Wait& wait : schedule_.waits_of(task(index))) {
    consider(wait, &TaskSpan::end_us);
  }
  if (!with_lane) return last;
  const plan::Wait& before = before_[static_cast<std::size_t>(index)];
  // Transfers of a disk begin in order, many at once.
  const bool overlaps =
      (task(index).lane == Lane::disk_read || task(index).lane == Lane::disk_write) &&
      !is_about_all_pages(task(index).kind) && !is_about_all_pages(task(before.task).kind);
  consider(before, overlaps ? &TaskSpan::begin_us : &TaskSpan::end_us);
  return last;
}

void WaitCauses::blame(int index, Runs runs, std::array<std::int64_t, plan::kLanes>& causes) const {
  const TaskSpan& waited = runs[0][static_cast<std::size_t>(index)];
  const std::int64_t from = waited.queued_us;
  std::int64_t until = waited.begin_us;
  Cause at = last_cause(index, 0, runs, false);
  while (until > from && at.task >= 0) {
    std::int64_t& fault = causes[static_cast<std::size_t>(task(at.task).lane)];
    const TaskSpan& span =
        runs[static_cast<std::size_t>(at.back)][static_cast<std::size_t>(at.task)];
    const Cause earlier = last_cause(at.task, at.back, runs, true);
    // Up to where the earlier one let it go on: its work, and the time in which it woke up.
    std::int64_t begin = earlier.task < 0 ? from : std::min(earlier.end_us, span.begin_us);
    begin = std::clamp(begin, from, until);
    fault += until - begin;
    until = begin;
    at = earlier;
  }
}

std::array<std::int64_t, plan::kLanes> WaitCauses::of(Runs runs) const {
  std::array<std::int64_t, plan::kLanes> causes{};
  for (int index = 0; index < static_cast<int>(schedule_.tasks.size()); ++index) {
    if (task(index).lane == Lane::compute) blame(index, runs, causes);
  }
  return causes;
}

}  // namespace terrace::runtime
