#include "terrace/train/export.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "subcommand.h"
#include "terrace/core/units.h"

namespace terrace::tools {

int run_export(Context& context, const Arguments& arguments) {
  std::string from;
  std::string to;
  train::ExportOptions options;
  config::OptionTable table;
  table.add({.flags = {"checkpoint"},
             .field = config::field(from),
             .help = "checkpoint, or output folder of a run (its newest one)",
             .positional = true,
             .required = true});
  table.add({.flags = {"folder"},
             .field = config::field(to),
             .help = "where the model goes: a new or empty folder",
             .positional = true,
             .required = true});
  table.add({.flags = {"dtype"},
             .field = config::choice<std::optional<DType>>(options.dtype, {{"auto", std::nullopt},
                                                                           {"bf16", DType::bf16},
                                                                           {"fp16", DType::f16},
                                                                           {"fp32", DType::f32}}),
             .help = "type of the weights, rounded from the FP32 masters",
             .default_note = "the checkpoint's"});
  table.add({.flags = {"saturate"},
             .field = config::field(options.saturate),
             .help = "write weights that are too large for the type as its largest number; they "
                     "are an error otherwise"});
  if (!parse(context, table, "terrace export CHECKPOINT DIR [OPTION ...]", arguments)) return 0;
  options.from = from;
  options.to = to;
  Attention attention(context);
  const train::Exported written = train::export_model(options, attention.watch, context.log);
  print(fmt::format("{}: the model of step {} in {}, {}\n", to, written.step,
                    name_of(written.dtype), format_bytes(written.bytes)));
  return 0;
}

}  // namespace terrace::tools
