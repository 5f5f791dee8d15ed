#pragma once

#include <algorithm>
#include <memory>
#include <span>

#include "terrace/device/inline_stream.h"
#include "terrace/runtime/run_context.h"

namespace terrace::runtime {

/// Where the optimizer's operations run: those that touch device memory on a stream of the device,
/// those on the host's alone at once. Single-owner.
class OptimizerStreams {
 public:
  explicit OptimizerStreams(const RunContext& context)
      : context_(context), device_(context.device.make_stream("optimizer")) {}

  [[nodiscard]] device::Span<std::byte> span(const plan::Access& access) const {
    return context_.memory.span(access.region, access.offset, access.bytes);
  }
  /// Runs an operation on what `accesses` name, and waits for it.
  void run(std::span<const plan::Access> accesses, const kernels::OptimizerOp& op) {
    const bool on_device = std::ranges::any_of(accesses, [&](const plan::Access& access) {
      return context_.plan.memory.region(access.region).tier == memory::Tier::device;
    });
    device::Stream& stream = on_device ? *device_ : *host_;
    context_.optimizer_ops.run(stream, op);
    stream.synchronize();
  }

 private:
  RunContext context_;
  std::unique_ptr<device::Stream> device_;
  std::unique_ptr<device::Stream> host_ = device::make_inline_stream();
};

}  // namespace terrace::runtime
