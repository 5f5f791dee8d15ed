#include <array>

#include "subcommand.h"
#include "terrace/core/error.h"
#include "terrace/engine/inference.h"

namespace terrace::tools {
namespace {

constexpr std::array<std::string_view, 6> kSettings = {"model", "max_length",  "dtype",
                                                       "bf16",  "host_memory", "threads"};

}  // namespace

int run_generate(Context& context, const Arguments& arguments) {
  engine::Settings settings;
  engine::GenerateOptions options;
  std::int64_t seed = 42;
  engine::OptionTable table;
  add_settings(table, settings, kSettings);
  table.group("Text");
  table.add({.flags = {"prompt"},
             .field = engine::field(options.prompt),
             .help = "text to go on from; empty: the beginning of a document",
             .free_text = true});
  table.add({.flags = {"max_new_tokens"},
             .field = engine::field(options.tokens_max),
             .help = "how much to write",
             .unit = "tokens",
             .minimum = 1});
  table.add({.flags = {"temperature"},
             .field = engine::field(options.temperature),
             .help = "how freely tokens are drawn; 0: always the likeliest",
             .minimum = 0});
  table.add({.flags = {"top_k"},
             .field = engine::field(options.top_k),
             .help = "draw among the likeliest; 0: among all",
             .unit = "tokens",
             .minimum = 0});
  table.add({.flags = {"seed"}, .field = engine::field(seed), .help = "of the draws"});
  table.add({.flags = {"stop_at_end"},
             .field = engine::field(options.stop_at_end),
             .help = "stop where the model ends its text"});
  if (!parse(context, table, "terrace generate --model DIR --prompt TEXT [OPTION ...]",
             arguments)) {
    return 0;
  }
  require(!settings.model.empty(), ErrorKind::usage,
          "--model is missing: give a model folder, a checkpoint or the output folder of a run");
  options.seed = static_cast<std::uint64_t>(seed);
  bool prompt_is_out = false;  // nothing is written before the model is known to be sound
  engine::generate(settings, options, context.log, [&](std::string_view text) {
    if (!prompt_is_out) print(options.prompt);
    prompt_is_out = true;
    print(text);
  });
  print("\n");
  return 0;
}

}  // namespace terrace::tools
