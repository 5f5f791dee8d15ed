#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "file_table.h"
#include "terrace/io/driver.h"
#include "terrace/io/ring.h"

namespace terrace::io {
namespace {

/// More threads than this seldom make a drive faster; each costs a context switch a call.
constexpr int kThreadsMax = 16;

class ThreadDriver final : public Driver {
 public:
  explicit ThreadDriver(int depth)
      : queued_(static_cast<std::size_t>(depth)), finished_(static_cast<std::size_t>(depth)) {
    const int threads = std::min(depth, kThreadsMax);
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { work(); });
    }
  }

  ~ThreadDriver() override {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    work_arrived_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  [[nodiscard]] std::string_view name() const override { return "threads"; }

  OpenedFile open(const std::filesystem::path& path, const OpenOptions& options) override {
    const std::scoped_lock lock(mutex_);
    return files_.open(path, options);
  }
  void use_page_cache(FileId file) override {
    const std::scoped_lock lock(mutex_);
    files_.use_page_cache(file);
  }
  [[nodiscard]] std::uint64_t size_of(FileId file) override { return files_.size_of(file); }
  [[nodiscard]] int register_buffers(std::span<const std::span<std::byte>>) override {
    return EOPNOTSUPP;
  }

  void push(const Piece& piece) override {
    {
      const std::scoped_lock lock(mutex_);
      queued_.push({piece, files_.descriptor(piece.file)});
    }
    ++in_flight_;
    work_arrived_.notify_one();
  }

  void start() override {}

  [[nodiscard]] std::size_t reap(std::span<Outcome> outcomes, bool block) override {
    if (in_flight_ == 0) return 0;
    std::unique_lock lock(mutex_);
    if (block) work_finished_.wait(lock, [this] { return !finished_.empty(); });
    std::size_t count = 0;
    while (count < outcomes.size() && !finished_.empty()) outcomes[count++] = finished_.pop();
    in_flight_ -= count;
    return count;
  }

 private:
  struct Work {
    Piece piece;
    int descriptor = -1;
  };

  static std::int32_t run(const Work& work) {
    const auto offset = static_cast<off_t>(work.piece.offset);
    ssize_t result = -1;
    switch (work.piece.kind) {
      case Operation::read:
        result = ::pread(work.descriptor, work.piece.data, work.piece.size, offset);
        break;
      case Operation::write:
        result = ::pwrite(work.descriptor, work.piece.data, work.piece.size, offset);
        break;
      case Operation::flush:
        result = ::fdatasync(work.descriptor);
        break;
    }
    return result < 0 ? -errno : static_cast<std::int32_t>(result);
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_arrived_.wait(lock, [this] { return stopping_ || !queued_.empty(); });
      if (queued_.empty()) return;
      const Work work = queued_.pop();
      lock.unlock();
      const std::int32_t result = run(work);
      lock.lock();
      finished_.push({work.piece.slot, result});
      work_finished_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_arrived_;
  std::condition_variable work_finished_;
  Ring<Work> queued_;
  Ring<Outcome> finished_;
  FileTable files_;
  bool stopping_ = false;
  std::size_t in_flight_ = 0;  ///< the owner's
  std::vector<std::thread> threads_;
};

/// Completes in the order of submission and moves nothing.
class NullDriver final : public Driver {
 public:
  explicit NullDriver(int depth) : finished_(static_cast<std::size_t>(depth)) {}

  [[nodiscard]] std::string_view name() const override { return "null"; }
  OpenedFile open(const std::filesystem::path&, const OpenOptions& options) override {
    sizes_.push_back(options.bytes);
    return {.id = FileId(static_cast<int>(sizes_.size()) - 1), .bytes = options.bytes};
  }
  void use_page_cache(FileId) override {}
  [[nodiscard]] std::uint64_t size_of(FileId file) override {
    return sizes_[static_cast<std::size_t>(file.value)];
  }
  [[nodiscard]] int register_buffers(std::span<const std::span<std::byte>>) override { return 0; }
  void push(const Piece& piece) override {
    finished_.push({piece.slot, static_cast<std::int32_t>(piece.size)});
  }
  void start() override {}
  [[nodiscard]] std::size_t reap(std::span<Outcome> outcomes, bool) override {
    std::size_t count = 0;
    while (count < outcomes.size() && !finished_.empty()) outcomes[count++] = finished_.pop();
    return count;
  }

 private:
  std::vector<std::uint64_t> sizes_;
  Ring<Outcome> finished_;
};

}  // namespace

std::unique_ptr<Driver> make_thread_driver(const DriverOptions& options) {
  return std::make_unique<ThreadDriver>(options.depth);
}

std::unique_ptr<Driver> make_null_driver(const DriverOptions& options) {
  return std::make_unique<NullDriver>(options.depth);
}

}  // namespace terrace::io
