#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "program.h"
#include "terrace/io/page_channel.h"

namespace terrace::runtime {

/// A lane whose tasks the host runs, on a thread of its own: it takes the posted runs in order, and
/// in each run its tasks of the schedule in order. After an error every later task only passes that
/// error on to who waits for it.
class HostLane {
 public:
  /// `program` outlives the lane.
  HostLane(Program& program, plan::Lane lane);
  /// The owner has poisoned the program if a run is not complete.
  virtual ~HostLane();
  HostLane(const HostLane&) = delete;
  HostLane& operator=(const HostLane&) = delete;

  void post(std::uint64_t sequence, Step step);

 protected:
  struct Run {
    std::uint64_t sequence = 0;
    Step step;
  };

  /// Starts the thread; the derived class calls it when it is complete, and `stop` first thing in
  /// its destructor.
  void start();
  void stop();

  /// Runs the lane's tasks of one run. Throws what goes wrong; tasks whose event was not signalled
  /// are then poisoned.
  virtual void run_tasks(const Run& run) = 0;

  /// Blocks until the task's waits are over and counts the time by cause.
  void wait_for(const plan::Task& task, const Run& run);
  [[nodiscard]] bool ready(const plan::Task& task, const Run& run);
  void count(const plan::Task& task, const Run& run, std::int64_t begin_us);

  Program& program_;
  plan::Lane lane_;
  std::vector<int> tasks_;  ///< indices into the schedule

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Run> posted_;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

/// Runs each task by a function, one after the other.
class SerialLane final : public HostLane {
 public:
  using Function = std::function<void(const plan::Task&, std::uint64_t sequence)>;
  SerialLane(Program& program, plan::Lane lane, Function function);
  ~SerialLane() override { stop(); }

 private:
  void run_tasks(const Run& run) override;
  Function function_;
};

/// Moves pages between the store and the host slab: begins tasks in order as they become ready and
/// lets them complete in any order.
class DiskLane final : public HostLane {
 public:
  using Commit = std::function<void(std::uint64_t sequence)>;
  /// `skips(sequence)`: whether the step was skipped, so that nothing is to be written.
  using Skips = std::function<bool(std::uint64_t sequence)>;
  DiskLane(Program& program, plan::Lane lane, io::PageStore& store, Commit commit, Skips skips);
  ~DiskLane() override { stop(); }

  [[nodiscard]] io::Capabilities capabilities() const { return channel_->capabilities(); }

 private:
  /// One page of a task and the memory it moves to or from.
  struct PageMove {
    io::PageId page;
    std::span<std::byte> memory;
  };
  struct Transfer {
    int task = -1;
    std::uint64_t sequence = 0;
    std::int64_t begin_us = 0;
    std::int64_t due_us = 0;  ///< not complete before that
    int pages = 0;            ///< still under way
  };

  void run_tasks(const Run& run) override;
  void move_pages(const Run& run);
  void bind(int task);
  void begin(int task, const Run& run);
  /// Commits, or drops what a skipped step has written.
  void finish_step(int task, const Run& run);
  void complete(int task, const Run& run, std::int64_t begin_us);
  /// Completes tasks, or at least brings one nearer.
  void collect(const Run& run);
  /// Completes what has moved and is due.
  void release(const Run& run);

  io::PageStore& store_;
  std::size_t pages_in_flight_max_;
  std::unique_ptr<io::PageChannel> channel_;
  Commit commit_;
  Skips skips_;
  std::vector<Transfer> transfers_;           ///< by task
  std::vector<std::vector<PageMove>> moves_;  ///< by task
  std::vector<std::uint64_t> done_;
  std::vector<int> moved_;  ///< tasks whose pages have all moved and that are not complete
  int pages_in_flight_ = 0;
  int tasks_under_way_ = 0;
  std::int64_t busy_since_us_ = 0;
};

}  // namespace terrace::runtime
