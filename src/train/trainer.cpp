#include "terrace/train/trainer.h"

#include <new>
#include <optional>
#include <utility>

#include "run_start.h"
#include "run_tables.h"
#include "state_keeper.h"
#include "step_loop.h"
#include "terrace/core/error.h"
#include "terrace/train/interrupt.h"

namespace terrace::train {
namespace {

int run(RunStart& start, StateKeeper& keeper, const TrainContext& context, Watch& watch) {
  print_tables(start, context.log);
  start.check();
  if (start.settings.output.dry_run) {
    context.log.info("dry run: everything but loading and the steps is done");
    return 0;
  }
  start.output.make(start.beginning.run);
  std::optional<StepLoop> loop;
  try {
    keeper.load();
    loop.emplace(start, keeper, context, watch);
  } catch (...) {
    keeper.abandon();
    throw;
  }
  start.output.clear();
  return loop->run();
}

}  // namespace

int train(config::Settings settings, const TrainContext& context) {
  try {
    Watch watch(context.signal, context.terminal, context.log);
    RunStart start(std::move(settings), context, watch);
    StateKeeper keeper(start, context, watch);
    try {
      return run(start, keeper, context, watch);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::out_of_memory) print_memory(start, context.log);
      const std::string good = error.kind() == ErrorKind::io ? keeper.last_good() : "";
      if (!good.empty()) fail(ErrorKind::io, "{}; {} is safe", error.what(), good);
      throw;
    } catch (const std::bad_alloc&) {
      print_memory(start, context.log);
      throw;
    }
  } catch (const Stopped& stopped) {
    context.log.info("{}: no step was made, and what was saved before is as it was",
                     stopped.what());
    return exit_code_of_signal(stopped.signal());
  }
}

}  // namespace terrace::train
