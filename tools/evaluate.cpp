#include <fmt/format.h>

#include <array>

#include "subcommand.h"
#include "terrace/core/error.h"
#include "terrace/core/json.h"
#include "terrace/core/units.h"
#include "terrace/train/inference.h"

namespace terrace::tools {
namespace {

constexpr std::array<std::string_view, 7> kSettings = {
    "model", "data", "max_length", "dtype", "bf16", "host_memory", "threads"};

}  // namespace

int run_evaluate(Context& context, const Arguments& arguments) {
  config::Settings settings;
  bool json = false;
  config::OptionTable table;
  add_settings(table, settings, kSettings);
  table.add({.flags = {"batch_size", "per_device_eval_batch_size"},
             .field = config::field(settings.batch.micro),
             .help = "sequences at a time",
             .unit = "sequences",
             .default_note = "8",
             .minimum = 1});
  table.group("Result");
  table.add({.flags = {"json"},
             .field = config::field(json),
             .help = "write the result as one JSON object"});
  if (!parse(context, table, "terrace evaluate --model DIR --data FILE ... [OPTION ...]",
             arguments)) {
    return 0;
  }
  require(!settings.model.empty(), ErrorKind::usage,
          "--model is missing: give a model folder, a checkpoint or the output folder of a run");
  require(!settings.data.files.empty(), ErrorKind::usage,
          "--data is missing: give the files or folders to evaluate on");
  Attention attention(context);
  const train::Evaluation result = train::evaluate_model(settings, attention.watch, context.log);
  if (json) {
    print(json_text({{"schema", "terrace.evaluate/1"},
                     {"loss", result.loss},
                     {"tokens", result.tokens},
                     {"sequences", result.sequences},
                     {"seconds", result.seconds},
                     {"tokens_per_second", result.tokens_per_second()}}));
  } else {
    print(fmt::format("loss {:.4f} nats a token over {} in {} ({} tokens/s)\n", result.loss,
                      counted(result.tokens, "token"), counted(result.sequences, "sequence"),
                      format_count(static_cast<std::uint64_t>(result.tokens_per_second()))));
  }
  return 0;
}

}  // namespace terrace::tools
