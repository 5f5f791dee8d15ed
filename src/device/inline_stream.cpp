#include "terrace/device/inline_stream.h"

#include "host_memory.h"

namespace terrace::device {
namespace {

class InlineStream final : public HostMemoryStream {
 public:
  void enqueue(Task task) override { task(); }
  void record(Event& event, std::uint64_t value) override { event.signal(value); }
  void wait(Event& event, std::uint64_t value) override { event.synchronize(value); }
  void synchronize() override {}
};

}  // namespace

std::unique_ptr<Stream> make_inline_stream() { return std::make_unique<InlineStream>(); }

}  // namespace terrace::device
