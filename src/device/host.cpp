#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/device/device.h"
#include "timeline.h"

namespace terrace::device {
namespace {

constexpr std::size_t kQueueEntries = 4096;

/// A thread and a ring of tasks. The ring is bounded so that a host that runs ahead waits.
class HostStream final : public Stream {
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

  void copy_to_device(Pointer target, std::span<const std::byte> source) override {
    enqueue([=] { std::memcpy(target.raw(), source.data(), source.size()); });
  }
  void copy_to_host(std::span<std::byte> target, Pointer source) override {
    enqueue([=] { std::memcpy(target.data(), source.raw(), target.size()); });
  }
  void copy_on_device(Pointer target, Pointer source, std::size_t bytes) override {
    enqueue([=] { std::memmove(target.raw(), source.raw(), bytes); });
  }
  void clear(Pointer target, std::size_t bytes) override {
    enqueue([=] { std::memset(target.raw(), 0, bytes); });
  }

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

class HostDevice final : public Device {
 public:
  [[nodiscard]] std::string name() const override { return "host"; }
  [[nodiscard]] bool memory_is_host() const override { return true; }
  [[nodiscard]] std::unique_ptr<Stream> make_stream(const std::string& name) override {
    return std::make_unique<HostStream>(name);
  }
  [[nodiscard]] std::unique_ptr<Event> make_event() override {
    return std::make_unique<Timeline>();
  }

  [[nodiscard]] Buffer allocate(std::size_t bytes, const std::string& purpose) override {
    return {this, map(bytes, purpose), bytes, false};
  }
  [[nodiscard]] Buffer allocate_pinned(std::size_t bytes, const std::string& purpose) override {
    return {this, map(bytes, purpose), bytes, true};
  }

 protected:
  void free(void* data, std::size_t bytes, bool /*pinned*/) noexcept override {
    ::munmap(data, mapped_bytes(bytes));
  }

 private:
  static std::size_t mapped_bytes(std::size_t bytes) {
    return round_up(std::max<std::size_t>(bytes, 1), static_cast<std::size_t>(getpagesize()));
  }

  static void* map(std::size_t bytes, const std::string& purpose) {
    void* data = ::mmap(nullptr, mapped_bytes(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(data != MAP_FAILED, ErrorKind::out_of_memory,
            "cannot allocate {} for {}: {}; lower the batch size or the sequence length, or move "
            "state to a slower tier",
            format_bytes(bytes), purpose, errno_name(errno));
    // Large pages cut the cost of first touch and of address translation; a refusal is harmless.
    ::madvise(data, mapped_bytes(bytes), MADV_HUGEPAGE);
    return data;
  }
};

}  // namespace

std::unique_ptr<Device> make_host_device() { return std::make_unique<HostDevice>(); }

}  // namespace terrace::device
