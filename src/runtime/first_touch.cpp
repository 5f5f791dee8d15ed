#include "terrace/runtime/first_touch.h"

#include <algorithm>
#include <vector>

#include "optimizer_streams.h"
#include "terrace/core/error.h"

namespace terrace::runtime {

void touch_first(const RunContext& context) {
  const plan::Plan& plan = context.plan;
  const auto count_of = [&](const plan::Task& update) {
    return plan.chunks[static_cast<std::size_t>(update.chunk)].range.count;
  };
  std::vector<plan::Task> updates;
  std::ranges::copy_if(plan.training.tasks, std::back_inserter(updates),
                       [](const plan::Task& task) { return task.kind == plan::TaskKind::update; });
  std::ranges::stable_sort(updates, std::greater(), count_of);
  OptimizerStreams streams(context);
  for (const plan::Task& update : updates) {
    kernels::FirstTouchArgs args{count_of(update)};
    const auto accesses = plan.training.accesses_of(update);
    require(accesses.size() <= args.arrays.size(), ErrorKind::internal,
            "an update touches {} arrays, {} are expected at most", accesses.size(),
            args.arrays.size());
    std::ranges::transform(accesses, args.arrays.begin(),
                           [&](const plan::Access& access) { return streams.span(access); });
    streams.run(accesses, args);
  }
}

}  // namespace terrace::runtime
