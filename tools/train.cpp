#include <fmt/format.h>
#include <fmt/ranges.h>

#include "subcommand.h"
#include "terrace/engine/interrupt.h"
#include "terrace/engine/settings.h"
#include "terrace/engine/trainer.h"

namespace terrace::tools {

int run_train(Context& context, const Arguments& arguments) {
  engine::Settings settings;
  engine::OptionTable table = engine::settings_options(settings);
  const std::string_view usage =
      "terrace train --model DIR|PRESET --data FILE ... --output DIR [OPTION ...]";
  if (!parse(context, table, usage, arguments)) return 0;
  engine::finalize_for_training(settings);
  const engine::Interrupt interrupt;
  return engine::train(std::move(settings),
                       {.terminal = context.terminal,
                        .log = context.log,
                        .signal = interrupt.flag(),
                        .command = fmt::format("terrace train {}", fmt::join(arguments, " "))});
}

}  // namespace terrace::tools
