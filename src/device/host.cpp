#include <pthread.h>

#include <string>
#include <thread>
#include <vector>

#include "host_memory.h"
#include "terrace/device/device.h"
#include "timeline.h"

namespace terrace::device {
namespace {

constexpr std::size_t kQueueEntries = 4096;

/// A thread and a ring of tasks. The ring is bounded so that a host that runs ahead waits.
class HostStream final : public HostMemoryStream {
 public:
  explicit HostStream(const std::string& name) : ring_(kQueueEntries), thread_([this] { run(); }) {
    pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
  }

  ~HostStream() override {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void enqueue(Task task) override { push({std::move(task), false}); }

  void record(Event& event, std::uint64_t value) override {
    push({[this, &event, value] {
            if (error_) {
              event.poison(error_);
            } else {
              event.signal(value);
            }
          },
          true});
  }

  void wait(Event& event, std::uint64_t value) override {
    enqueue([&event, value] { event.synchronize(value); });
  }

  void synchronize() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ == pushed_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Entry {
    Task task;
    bool always = false;  ///< runs after an error too
  };

  void push(Entry entry) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return pushed_ - done_ < kQueueEntries; });
      ring_[pushed_ % kQueueEntries] = std::move(entry);
      ++pushed_;
    }
    changed_.notify_all();
  }

  void run() {
    for (;;) {
      Entry* entry = nullptr;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return done_ != pushed_ || stopping_; });
        if (done_ == pushed_) return;
        entry = &ring_[done_ % kQueueEntries];
      }
      if (entry->always || !error_) {
        try {
          entry->task();
        } catch (...) {
          const std::scoped_lock lock(mutex_);
          if (!error_) error_ = std::current_exception();
        }
      }
      entry->task = Task();
      {
        const std::scoped_lock lock(mutex_);
        ++done_;
      }
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> ring_;
  std::uint64_t pushed_ = 0;
  std::uint64_t done_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;  ///< written under the mutex, by the stream's thread only
  std::thread thread_;
};

class HostDevice final : public HostMemoryDevice {
 public:
  [[nodiscard]] std::string name() const override { return "host"; }
  [[nodiscard]] std::unique_ptr<Stream> make_stream(const std::string& name) override {
    return std::make_unique<HostStream>(name);
  }
  [[nodiscard]] std::unique_ptr<Event> make_event() override {
    return std::make_unique<Timeline>();
  }
};

}  // namespace

std::unique_ptr<Device> make_host_device() { return std::make_unique<HostDevice>(); }

}  // namespace terrace::device
