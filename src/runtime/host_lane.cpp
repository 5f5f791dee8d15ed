#include "host_lane.h"

#include <pthread.h>

#include <algorithm>
#include <limits>

#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::runtime {

using plan::Task;
using plan::TaskKind;

namespace {

constexpr std::size_t kPagesInFlightMax = 1024;

/// Pages that a lane may have in flight: those of its largest task, which are begun together, or
/// more.
std::size_t pages_in_flight_max(const Program& program, plan::Lane lane) {
  std::size_t most = kPagesInFlightMax;
  for (const Task& task : program.schedule().tasks) {
    if (task.lane == lane) most = std::max(most, program.schedule().accesses_of(task).size());
  }
  return most;
}

}  // namespace

HostLane::HostLane(Program& program, plan::Lane lane) : program_(program), lane_(lane) {
  const auto& tasks = program.schedule().tasks;
  for (std::size_t index = 0; index < tasks.size(); ++index) {
    if (tasks[index].lane == lane) tasks_.push_back(static_cast<int>(index));
  }
}

HostLane::~HostLane() = default;

void HostLane::start() {
  thread_ = std::thread([this] { loop(); });
  pthread_setname_np(thread_.native_handle(), std::string(name_of(lane_)).substr(0, 15).c_str());
}

void HostLane::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void HostLane::post(std::uint64_t sequence, Step step) {
  {
    const std::scoped_lock lock(mutex_);
    posted_.push_back({sequence, step});
  }
  changed_.notify_all();
}

void HostLane::loop() {
  for (;;) {
    Run run;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !posted_.empty() || stopping_; });
      if (posted_.empty()) return;
      run = posted_.front();
      posted_.pop_front();
    }
    try {
      if (error_) std::rethrow_exception(error_);
      run_tasks(run);
    } catch (...) {
      error_ = std::current_exception();
      for (const int task : tasks_) program_.event(task).poison(error_);
    }
  }
}

bool HostLane::ready(const Task& task, const Run& run) {
  return std::ranges::all_of(program_.schedule().waits_of(task), [&](const plan::Wait& wait) {
    return program_.event(wait.task).reached(run.sequence -
                                             static_cast<std::uint64_t>(wait.steps_back));
  });
}

void HostLane::wait_for(const Task& task, const Run& run) {
  for (const plan::Wait& wait : program_.schedule().waits_of(task)) {
    program_.event(wait.task).synchronize(run.sequence -
                                          static_cast<std::uint64_t>(wait.steps_back));
  }
}

void HostLane::count(const Task& task, const Run& run, std::int64_t begin_us) {
  program_.times(run.sequence).of(lane_).bytes += task.bytes;
  program_.record(task, run.sequence, run.step, begin_us, now_us());
}

SerialLane::SerialLane(Program& program, plan::Lane lane, Function function)
    : HostLane(program, lane), function_(std::move(function)) {
  start();
}

void SerialLane::run_tasks(const Run& run) {
  for (const int index : tasks_) {
    const Task& task = program_.schedule().tasks[static_cast<std::size_t>(index)];
    wait_for(task, run);
    const std::int64_t begin = now_us();
    function_(task, run.sequence);
    program_.overwrite_released(index);
    program_.hold(task, begin);
    program_.times(run.sequence).of(lane_).busy_us += now_us() - begin;
    count(task, run, begin);
    program_.event(index).signal(run.sequence);
  }
}

DiskLane::DiskLane(Program& program, plan::Lane lane, io::PageStore& store, Commit commit,
                   Skips skips)
    : HostLane(program, lane),
      store_(store),
      pages_in_flight_max_(pages_in_flight_max(program, lane)),
      channel_(store.open_channel({pages_in_flight_max_})),
      commit_(std::move(commit)),
      skips_(std::move(skips)),
      transfers_(program.schedule().tasks.size()),
      moves_(program.schedule().tasks.size()),
      done_(64) {
  const std::span<std::byte> slab = program.context().memory.host_slab();
  channel_->register_buffers(std::span(&slab, 1));
  for (const int task : tasks_) bind(task);
  moved_.reserve(tasks_.size());
  start();
}

void DiskLane::run_tasks(const Run& run) {
  try {
    move_pages(run);
  } catch (...) {
    // Also when another lane has failed: this one may have the drives' turn, for which one waits.
    channel_->abandon();
    throw;
  }
}

void DiskLane::move_pages(const Run& run) {
  for (const int index : tasks_) {
    const Task& task = program_.schedule().tasks[static_cast<std::size_t>(index)];
    // Transfers go on only while the channel is waited for: do that rather than wait for others.
    const int pages = static_cast<int>(moves_[static_cast<std::size_t>(index)].size());
    while (tasks_under_way_ > 0 &&
           (!ready(task, run) || is_about_all_pages(task.kind) ||
            pages_in_flight_ + pages > static_cast<int>(pages_in_flight_max_))) {
      collect(run);
    }
    wait_for(task, run);
    begin(index, run);
  }
  while (tasks_under_way_ > 0) collect(run);
}

void DiskLane::bind(int index) {
  const Task& task = program_.schedule().tasks[static_cast<std::size_t>(index)];
  if (is_about_all_pages(task.kind)) return;
  // As many pages as slots, in the same order; or one slot for all pages, end to end.
  const memory::MemoryPlan& regions = program_.context().plan.memory;
  std::vector<plan::Access> pages;
  std::vector<plan::Access> slots;
  for (const plan::Access& access : program_.schedule().accesses_of(task)) {
    const bool page = regions.region(access.region).tier == memory::Tier::disk;
    (page ? pages : slots).push_back(access);
  }
  std::uint64_t offset = 0;
  for (std::size_t page = 0; page < pages.size(); ++page) {
    const bool shared = slots.size() != pages.size();
    const plan::Access& slot = shared ? slots.front() : slots[page];
    const std::uint64_t bytes = round_up(pages[page].bytes, io::PageStore::kAlignment);
    moves_[static_cast<std::size_t>(index)].push_back(
        {io::PageId(static_cast<std::uint64_t>(pages[page].region.value)),
         program_.context().memory.host(slot.region, slot.offset + (shared ? offset : 0), bytes)});
    offset += bytes;
  }
}

void DiskLane::complete(int index, const Run& run, std::int64_t begin_us) {
  program_.overwrite_released(index);
  count(program_.schedule().tasks[static_cast<std::size_t>(index)], run, begin_us);
  program_.event(index).signal(run.sequence);
}

void DiskLane::finish_step(int index, const Run& run) {
  const Task& task = program_.schedule().tasks[static_cast<std::size_t>(index)];
  const std::int64_t begin_us = now_us();
  if (task.kind == TaskKind::commit) {
    commit_(run.sequence);
  } else if (skips_(run.sequence)) {
    store_.discard();
  }
  program_.times(run.sequence).of(lane_).busy_us += now_us() - begin_us;
  complete(index, run, begin_us);
}

void DiskLane::begin(int index, const Run& run) {
  const Task& task = program_.schedule().tasks[static_cast<std::size_t>(index)];
  if (is_about_all_pages(task.kind)) return finish_step(index, run);
  const std::int64_t begin_us = now_us();
  const bool late =
      task.kind == TaskKind::write_chunk && !program_.context().plan.updates_early(task.flat);
  if (late && skips_(run.sequence)) {
    program_.record(task, run.sequence, run.step, begin_us, begin_us);  // its slot is free again
    return program_.event(index).signal(run.sequence);
  }
  const std::vector<PageMove>& moves = moves_[static_cast<std::size_t>(index)];
  transfers_[static_cast<std::size_t>(index)] = {
      index, run.sequence, begin_us, program_.due(task, begin_us), static_cast<int>(moves.size())};
  if (tasks_under_way_++ == 0) busy_since_us_ = begin_us;
  for (const PageMove& move : moves) {
    ++pages_in_flight_;
    if (lane_ == plan::Lane::disk_write) {
      channel_->write(move.page, move.memory, static_cast<std::uint64_t>(index));
    } else {
      channel_->read(move.page, move.memory, static_cast<std::uint64_t>(index));
    }
  }
}

void DiskLane::collect(const Run& run) {
  if (pages_in_flight_ > 0) {
    const std::size_t count_done = channel_->wait(done_);
    for (std::size_t i = 0; i < count_done; ++i) {
      Transfer& transfer = transfers_[done_[i]];
      --pages_in_flight_;
      if (--transfer.pages == 0) moved_.push_back(transfer.task);
    }
  } else {
    std::int64_t first_due_us = std::numeric_limits<std::int64_t>::max();
    for (const int task : moved_) {
      first_due_us = std::min(first_due_us, transfers_[static_cast<std::size_t>(task)].due_us);
    }
    program_.sleep_until(lane_, first_due_us);
  }
  release(run);
}

void DiskLane::release(const Run& run) {
  const std::int64_t now = now_us();
  for (std::size_t i = 0; i < moved_.size();) {
    const Transfer& transfer = transfers_[static_cast<std::size_t>(moved_[i])];
    if (transfer.due_us > now) {
      ++i;
      continue;
    }
    moved_.erase(moved_.begin() + static_cast<std::ptrdiff_t>(i));
    // Counted first: once the last task has signalled, the step's times are read.
    if (--tasks_under_way_ == 0) {
      program_.times(run.sequence).of(lane_).busy_us += now - busy_since_us_;
    }
    complete(transfer.task, run, transfer.begin_us);
  }
}

}  // namespace terrace::runtime
