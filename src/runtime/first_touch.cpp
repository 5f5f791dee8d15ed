#include "terrace/runtime/first_touch.h"

#include <algorithm>
#include <vector>

#include "terrace/kernels/optimizer_step.h"

namespace terrace::runtime {
namespace {

constexpr std::size_t kPageBytes = memory::MemoryPlan::kAlignmentBytes;

/// Writes to the first byte, and to the first of each page that begins among the bytes.
void touch(std::span<std::byte> bytes) {
  const std::size_t into_page = reinterpret_cast<std::uintptr_t>(bytes.data()) % kPageBytes;
  for (std::size_t at = 0; at < bytes.size(); at += kPageBytes - (at == 0 ? into_page : 0)) {
    bytes[at] = std::byte{0};
  }
}

}  // namespace

void touch_first(const plan::Plan& plan, const RunMemory& memory, Workers& workers) {
  if (workers.nodes().empty()) return;
  const auto count_of = [&](const plan::Task& update) {
    return plan.chunks[static_cast<std::size_t>(update.chunk)].range.count;
  };
  std::vector<plan::Task> updates;
  std::ranges::copy_if(plan.training.tasks, std::back_inserter(updates),
                       [](const plan::Task& task) { return task.kind == plan::TaskKind::update; });
  std::ranges::stable_sort(updates, std::greater(), count_of);
  for (const plan::Task& update : updates) {
    const std::int64_t count = count_of(update);
    workers.parallel_for(count, kernels::kStepGrain, [&](std::int64_t begin, std::int64_t end) {
      for (const plan::Access& access : plan.training.accesses_of(update)) {
        const std::span<std::byte> bytes = memory.host(access.region, access.offset, access.bytes);
        const std::size_t size = bytes.size() / static_cast<std::size_t>(count);
        touch(bytes.subspan(static_cast<std::size_t>(begin) * size,
                            static_cast<std::size_t>(end - begin) * size));
      }
    });
  }
}

}  // namespace terrace::runtime
