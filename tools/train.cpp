#include <fmt/format.h>
#include <fmt/ranges.h>

#include "subcommand.h"
#include "terrace/config/settings.h"
#include "terrace/train/interrupt.h"
#include "terrace/train/trainer.h"

namespace terrace::tools {

int run_train(Context& context, const Arguments& arguments) {
  config::Settings settings;
  config::OptionTable table = config::settings_options(settings);
  const std::string_view usage =
      "terrace train --model DIR|PRESET --data FILE ... --output DIR [OPTION ...]";
  if (!parse(context, table, usage, arguments)) return 0;
  config::finalize_for_training(settings);
  const train::Interrupt interrupt;
  return train::train(std::move(settings),
                      {.terminal = context.terminal,
                       .log = context.log,
                       .signal = interrupt.flag(),
                       .command = fmt::format("terrace train {}", fmt::join(arguments, " "))});
}

}  // namespace terrace::tools
