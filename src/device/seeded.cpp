#include "terrace/device/seeded.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "host_memory.h"
#include "terrace/core/error.h"
#include "terrace/core/random.h"
#include "timeline.h"

namespace terrace::device {
namespace {

constexpr std::size_t kQueueEntries = 4096;
/// After a task the streams get new priorities once in so many times.
constexpr std::uint64_t kTasksPerOrder = 8;

class SeededStream;

/// The one thread of a seeded device, and what it shares with callers.
class Runner {
 public:
  explicit Runner(std::uint64_t seed)
      : random_(seed, 0x736565646564ULL), thread_([this] { run(); }) {}
  ~Runner() {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  void add(SeededStream* stream);
  void remove(SeededStream* stream) {
    const std::scoped_lock lock(mutex_);
    std::erase(streams_, stream);
  }
  /// An event has moved.
  void wake() {
    // Under the mutex, so that the thread is not between looking and going to sleep.
    { const std::scoped_lock lock(mutex_); }
    changed_.notify_all();
  }

 private:
  friend class SeededStream;

  void run();
  [[nodiscard]] SeededStream* pick() const;

  std::mutex mutex_;  ///< guards the streams' queues too
  std::condition_variable changed_;

  RandomStream random_;
  std::uint64_t draws_ = 0;
  std::vector<SeededStream*> streams_;
  bool stopping_ = false;
  std::thread thread_;
};

class SeededEvent final : public Event {
 public:
  explicit SeededEvent(Runner& runner) : runner_(runner) {}
  // Whoever is let go may destroy the event at once: only the runner is touched afterwards.
  void signal(std::uint64_t value) override {
    Runner& runner = runner_;
    timeline_.signal(value);
    runner.wake();
  }
  void poison(std::exception_ptr error) override {
    Runner& runner = runner_;
    timeline_.poison(std::move(error));
    runner.wake();
  }
  void synchronize(std::uint64_t value) override { timeline_.synchronize(value); }
  [[nodiscard]] bool reached(std::uint64_t value) const override {
    return timeline_.reached(value);
  }
  /// Whether a wait for `value` would return or throw at once.
  [[nodiscard]] bool settled(std::uint64_t value) const { return timeline_.settled(value); }

 private:
  Runner& runner_;
  Timeline timeline_;
};

class SeededStream final : public HostMemoryStream {
 public:
  explicit SeededStream(Runner& runner) : runner_(runner) { runner_.add(this); }
  ~SeededStream() override {
    {
      std::unique_lock lock(runner_.mutex_);
      runner_.changed_.wait(lock, [&] { return queue_.empty() && !running_; });
    }
    runner_.remove(this);
  }

  void enqueue(Task task) override { push({std::move(task), nullptr, 0, false}); }
  void record(Event& event, std::uint64_t value) override {
    push({[this, &event, value] {
            if (error_) {
              event.poison(error_);
            } else {
              event.signal(value);
            }
          },
          nullptr, 0, true});
  }
  void wait(Event& event, std::uint64_t value) override {
    auto* seeded = dynamic_cast<SeededEvent*>(&event);
    require(seeded != nullptr, ErrorKind::internal, "the event is of another device");
    push({[seeded, value] { seeded->synchronize(value); }, seeded, value, false});
  }
  void synchronize() override {
    std::unique_lock lock(runner_.mutex_);
    runner_.changed_.wait(lock, [&] { return queue_.empty() && !running_; });
    if (error_) std::rethrow_exception(error_);
  }

  /// With the runner's mutex held: whether the next task may run.
  [[nodiscard]] bool ready() const {
    if (queue_.empty()) return false;
    const Entry& next = queue_.front();
    return error_ != nullptr || next.awaited == nullptr || next.awaited->settled(next.value);
  }
  /// By the runner's thread, with the mutex held: runs the next task without it.
  void run_next(std::unique_lock<std::mutex>& lock) {
    Entry entry = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    const bool runs = entry.always || !error_;
    lock.unlock();
    std::exception_ptr error;
    try {
      if (runs) entry.task();
    } catch (...) {
      error = std::current_exception();
    }
    entry.task = Task();
    lock.lock();
    if (error && !error_) error_ = error;
    running_ = false;
  }

  std::uint64_t priority = 0;  ///< the runner's

 private:
  struct Entry {
    Task task;
    const SeededEvent* awaited = nullptr;
    std::uint64_t value = 0;
    bool always = false;  ///< runs after an error too
  };

  void push(Entry entry) {
    {
      std::unique_lock lock(runner_.mutex_);
      runner_.changed_.wait(lock, [&] { return queue_.size() < kQueueEntries; });
      queue_.push_back(std::move(entry));
    }
    runner_.changed_.notify_all();
  }

  Runner& runner_;
  // All under the runner's mutex.
  std::deque<Entry> queue_;
  bool running_ = false;
  std::exception_ptr error_;
};

void Runner::add(SeededStream* stream) {
  const std::scoped_lock lock(mutex_);
  stream->priority = random_.bits(draws_++);
  streams_.push_back(stream);
}

SeededStream* Runner::pick() const {
  SeededStream* best = nullptr;
  for (SeededStream* stream : streams_) {
    if (stream->ready() && (best == nullptr || stream->priority > best->priority)) best = stream;
  }
  return best;
}

void Runner::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    SeededStream* stream = pick();
    if (stream == nullptr) {
      changed_.wait(lock);
      continue;
    }
    stream->run_next(lock);
    if (random_.bits(draws_++) % kTasksPerOrder == 0) {
      for (SeededStream* other : streams_) other->priority = random_.bits(draws_++);
    }
    changed_.notify_all();
  }
}

class SeededDevice final : public HostMemoryDevice {
 public:
  explicit SeededDevice(std::uint64_t seed) : runner_(seed) {}
  [[nodiscard]] std::string name() const override { return "seeded"; }
  [[nodiscard]] std::unique_ptr<Stream> make_stream(const std::string& /*name*/) override {
    return std::make_unique<SeededStream>(runner_);
  }
  [[nodiscard]] std::unique_ptr<Event> make_event() override {
    return std::make_unique<SeededEvent>(runner_);
  }

 private:
  Runner runner_;
};

}  // namespace

std::unique_ptr<Device> make_seeded_device(std::uint64_t seed) {
  return std::make_unique<SeededDevice>(seed);
}

}  // namespace terrace::device
