#include "terrace/checkpoint/inspect.h"

#include "subcommand.h"

namespace terrace::tools {

int run_inspect(Context& context, const Arguments& arguments) {
  std::string path;
  checkpoint::InspectOptions options;
  bool json = false;
  config::OptionTable table;
  table.group("Arguments");
  table.add({.flags = {"path"},
             .field = config::field(path),
             .help = "checkpoint, output folder, model folder, safetensors file or page store",
             .positional = true,
             .required = true});
  table.group("Options");
  table.add(
      {.flags = {"verify"},
       .field = config::field(options.verify),
       .help = "verify the checksum of every byte of a checkpoint, or of all in an output folder"});
  table.add({.flags = {"json"},
             .field = config::field(json),
             .help = "write one JSON object, with every tensor"});
  if (!parse(context, table, "terrace inspect DIR|FILE [OPTION ...]", arguments)) return 0;
  Attention attention(context);
  train::Activity looking(attention.watch, options.verify ? "verifying the checksums of " + path
                                                          : "looking at " + path);
  options.progress = looking.progress();
  const checkpoint::Inspection found = checkpoint::inspect(path, options);
  const std::string& text = json ? found.json : found.text;
  print(text.ends_with('\n') ? text : text + "\n");
  return 0;
}

}  // namespace terrace::tools
