#include "terrace/device/opaque.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "host_memory.h"
#include "terrace/core/error.h"

namespace terrace::device {
namespace {

/// The mappings of a device, which are accessible while somebody holds them open. Thread-safe.
class Mappings {
 public:
  void add(void* data, std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    bytes_.emplace(data, bytes);
    require(protect(), ErrorKind::internal, "access to {} bytes cannot be taken away", bytes);
  }
  void remove(void* data) {
    const std::scoped_lock lock(mutex_);
    bytes_.erase(data);
  }
  void open() {
    const std::scoped_lock lock(mutex_);
    if (holders_++ > 0) return;
    require(protect(), ErrorKind::internal, "access to device memory cannot be given");
  }
  void close() noexcept {
    const std::scoped_lock lock(mutex_);
    if (--holders_ == 0 && !protect()) std::abort();  // what comes would pass unseen
  }

 private:
  [[nodiscard]] bool protect() const {
    const int access = holders_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    return std::ranges::all_of(bytes_, [&](const auto& mapping) {
      return ::mprotect(mapping.first, mapping.second, access) == 0;
    });
  }

  std::mutex mutex_;
  std::map<void*, std::size_t> bytes_;
  int holders_ = 0;
};

/// Holds the mappings open.
class Access {
 public:
  explicit Access(Mappings& mappings) : mappings_(mappings) { mappings_.open(); }
  ~Access() { mappings_.close(); }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

 private:
  Mappings& mappings_;
};

class OpaqueStream final : public HostMemoryStream {
 public:
  OpaqueStream(std::unique_ptr<Stream> inner, Mappings& mappings)
      : inner_(std::move(inner)), mappings_(mappings) {}

  void enqueue(Task task) override {
    inner_->enqueue([this, held = std::make_unique<Task>(std::move(task))] {
      const Access access(mappings_);
      (*held)();
    });
  }
  void record(Event& event, std::uint64_t value) override { inner_->record(event, value); }
  void wait(Event& event, std::uint64_t value) override { inner_->wait(event, value); }
  void synchronize() override { inner_->synchronize(); }

 private:
  std::unique_ptr<Stream> inner_;
  Mappings& mappings_;
};

class OpaqueDevice final : public HostMemoryDevice {
 public:
  explicit OpaqueDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] std::string name() const override { return "opaque " + inner_->name(); }
  [[nodiscard]] bool memory_is_host() const override { return false; }
  [[nodiscard]] std::unique_ptr<Stream> make_stream(const std::string& name) override {
    return std::make_unique<OpaqueStream>(inner_->make_stream(name), mappings_);
  }
  [[nodiscard]] std::unique_ptr<Event> make_event() override { return inner_->make_event(); }
  [[nodiscard]] Buffer allocate(std::size_t bytes, const std::string& purpose) override {
    Buffer buffer = HostMemoryDevice::allocate(bytes, purpose);
    mappings_.add(buffer.pointer().raw(), bytes);
    return buffer;
  }

 protected:
  void free(void* data, std::size_t bytes, bool pinned) noexcept override {
    if (!pinned) mappings_.remove(data);
    HostMemoryDevice::free(data, bytes, pinned);
  }

 private:
  std::unique_ptr<Device> inner_;
  Mappings mappings_;
};

}  // namespace

std::unique_ptr<Device> make_opaque_device(std::unique_ptr<Device> inner) {
  return std::make_unique<OpaqueDevice>(std::move(inner));
}

}  // namespace terrace::device
