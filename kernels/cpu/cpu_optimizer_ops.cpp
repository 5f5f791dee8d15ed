#include <unistd.h>

#include "cpu/optim_loops.h"
#include "cpu/optim_step.h"
#include "terrace/kernels/cpu.h"

namespace terrace::kernels {
namespace {

/// Writes to the first byte, and to the first of each page that begins among the bytes.
void touch(std::span<std::byte> bytes) {
  const auto page = static_cast<std::size_t>(::getpagesize());
  const std::size_t into_page = reinterpret_cast<std::uintptr_t>(bytes.data()) % page;
  for (std::size_t at = 0; at < bytes.size(); at += page - (at == 0 ? into_page : 0)) {
    bytes[at] = std::byte{0};
  }
}

class CpuOptimizerOps final : public OptimizerOps {
 public:
  CpuOptimizerOps(Workers& workers, CpuTarget target) : loops_{workers, target} {}

 protected:
  void enqueue(device::Stream& stream, const OptimizerOp& op) override {
    std::visit(
        [&](const auto& args) { stream.enqueue([this, args] { kernels::run(loops_, args); }); },
        op);
  }

 private:
  Loops loops_;
};

}  // namespace

void run(const Loops& loops, const FirstTouchArgs& args) {
  if (loops.workers.nodes().empty()) return;
  loops.workers.parallel_for(args.count, kStepGrain, [&](std::int64_t begin, std::int64_t end) {
    for (const device::Span<std::byte>& array : args.arrays) {
      const std::size_t size = array.size() / static_cast<std::size_t>(args.count);
      touch(array.on_host().subspan(static_cast<std::size_t>(begin) * size,
                                    static_cast<std::size_t>(end - begin) * size));
    }
  });
}

std::unique_ptr<OptimizerOps> make_cpu_optimizer_ops(Workers& workers, CpuTarget target) {
  return std::make_unique<CpuOptimizerOps>(workers, target);
}

}  // namespace terrace::kernels
