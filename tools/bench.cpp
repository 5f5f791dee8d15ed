#include <array>

#include "bench_compute.h"
#include "bench_disk.h"
#include "bench_optimizer.h"
#include "subcommand.h"
#include "terrace/core/error.h"

namespace terrace::tools {
namespace {

struct OptimizerArguments {
  OptimizerBenchOptions options;
  bool json = false;
};

engine::OptionTable optimizer_options(OptimizerArguments& arguments) {
  using optim::MasterFormat;
  OptimizerBenchOptions& options = arguments.options;
  engine::OptionTable table;
  table.group("Options");
  table.add({.flags = {"parameters"},
             .field = engine::field(options.parameters),
             .help = "length of the range that is updated",
             .unit = "parameters",
             .minimum = 1});
  table.add({.flags = {"state"},
             .field = engine::choices<optim::StateFormat>(
                 options.states, {{"fp32", {MasterFormat::fp32, DType::f32}},
                                  {"split", {MasterFormat::split, DType::f32}},
                                  {"fp32+bf16_moments", {MasterFormat::fp32, DType::bf16}},
                                  {"split+bf16_moments", {MasterFormat::split, DType::bf16}}}),
             .help = "formats of the optimizer's state"});
  table.add(
      {.flags = {"gradient"},
       .field = engine::choices<DType>(
           options.gradients, {{"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp32", DType::f32}}),
       .help = "types of the gradient"});
  table.add({.flags = {"threads"},
             .field = engine::field(options.threads),
             .help = "threads; 0: what affinity and container give",
             .unit = "threads",
             .minimum = 0});
  table.add({.flags = {"every_target"},
             .field = engine::field(options.every_target),
             .help = "measure every instruction set, not only the best one"});
  table.add({.flags = {"repetitions"},
             .field = engine::field(options.repetitions),
             .help = "measured repetitions, of which the median is shown",
             .unit = "repetitions",
             .minimum = 1});
  table.add({.flags = {"json"},
             .field = engine::field(arguments.json),
             .help = "write the result as one JSON object"});
  return table;
}

int run_optimizer(Context& context, const Arguments& arguments) {
  OptimizerArguments chosen;
  engine::OptionTable table = optimizer_options(chosen);
  if (!parse(context, table, "terrace bench optimizer [OPTION ...]", arguments)) return 0;
  const auto variants = bench_optimizer(chosen.options);
  print(chosen.json ? to_json(variants) : to_table(variants));
  return 0;
}

struct DiskArguments {
  DiskBenchOptions options;
  std::vector<std::string> paths;
  bool json = false;
};

void add_disk_work(engine::OptionTable& table, DiskArguments& arguments) {
  DiskBenchOptions& options = arguments.options;
  table.group("Options (fio's names)");
  table.add({.flags = {"path"},
             .field = engine::field(arguments.paths),
             .help = "folders, one a drive: DIR[,DIR]",
             .required = true});
  table.add({.flags = {"size"},
             .field = engine::size_field(options.size),
             .help = "state that is moved; twice as much is reserved on the drives together",
             .unit = "bytes"});
  table.add({.flags = {"bs", "block"},
             .field = engine::size_field(options.block),
             .help = "one transfer, a multiple of 256 KiB",
             .unit = "bytes"});
  table.add({.flags = {"iodepth", "depth"},
             .field = engine::field(options.depth),
             .help = "transfers in flight a drive",
             .unit = "transfers",
             .minimum = 1,
             .maximum = 4096});
  table.add({.flags = {"runtime"},
             .field = engine::field(options.runtime_seconds),
             .help = "repeat at least until so much time was measured",
             .unit = "seconds",
             .minimum = 0});
}

engine::OptionTable disk_options(DiskArguments& arguments) {
  DiskBenchOptions& options = arguments.options;
  engine::OptionTable table;
  add_disk_work(table, arguments);
  table.add({.flags = {"repetitions"},
             .field = engine::field(options.repetitions),
             .help = "measured repetitions at least",
             .unit = "repetitions",
             .minimum = 1});
  table.add({.flags = {"ioengine", "engine"},
             .field = engine::choice<io::DriverKind>(
                 options.driver,
                 {{"io_uring", io::DriverKind::uring}, {"threads", io::DriverKind::threads}}),
             .help = "how requests reach the kernel"});
  table.add({.flags = {"sqpoll"},
             .field = engine::field(options.sqpoll),
             .help = "let a kernel thread poll for requests"});
  table.add({.flags = {"buffered"},
             .field = engine::field(options.buffered),
             .help = "measure through the page cache where O_DIRECT is refused, instead of ending "
                     "with exit code 5"});
  table.add({.flags = {"json"},
             .field = engine::field(arguments.json),
             .help = "write the result as one JSON object"});
  return table;
}

int run_disk(Context& context, const Arguments& arguments) {
  DiskArguments chosen;
  engine::OptionTable table = disk_options(chosen);
  const std::string_view usage = "terrace bench disk --path DIR[,DIR] [OPTION ...]";
  if (!parse(context, table, usage, arguments)) return 0;
  chosen.options.paths.assign(chosen.paths.begin(), chosen.paths.end());
  const DiskBenchResult result = bench_disk(chosen.options, context.log);
  print(chosen.json ? to_json(result) : to_table(result));
  return 0;
}

int run_compute(Context& context, const Arguments& arguments) {
  ComputeBenchOptions options;
  bool json = false;
  engine::OptionTable table;
  table.group("Options");
  table.add({.flags = {"model"}, .field = engine::field(options.model), .help = "a preset"});
  table.add({.flags = {"rows", "batch_size"},
             .field = engine::field(options.rows),
             .help = "sequences computed at once",
             .unit = "sequences",
             .minimum = 1});
  table.add({.flags = {"sequence", "max_length"},
             .field = engine::field(options.sequence),
             .help = "length of a sequence",
             .unit = "tokens",
             .minimum = 1});
  table.add({.flags = {"dtype"},
             .field = engine::choices<DType>(options.dtypes,
                                             {{"bf16", DType::bf16}, {"fp32", DType::f32}}),
             .help = "compute types"});
  table.add({.flags = {"threads"},
             .field = engine::field(options.threads),
             .help = "threads; 0: what affinity and container give",
             .unit = "threads",
             .minimum = 0});
  table.add({.flags = {"repetitions"},
             .field = engine::field(options.repetitions),
             .help = "measured repetitions, of which the median is shown",
             .unit = "repetitions",
             .minimum = 1});
  table.add({.flags = {"json"},
             .field = engine::field(json),
             .help = "write the result as one JSON object"});
  if (!parse(context, table, "terrace bench compute [OPTION ...]", arguments)) return 0;
  const ComputeBench result = bench_compute(options);
  print(json ? to_json(result) : to_table(result));
  return 0;
}

constexpr std::array kBenchmarks = {
    Subcommand{"disk", "the page store on the drives: read, write and mixed", run_disk},
    Subcommand{"optimizer", "the optimizer's update in memory, against streams without arithmetic",
               run_optimizer},
    Subcommand{"compute", "the operations on a model's shapes, against oneDNN's plain product",
               run_compute},
};

}  // namespace

int run_bench(Context& context, const Arguments& arguments) {
  return dispatch(context,
                  {"terrace bench", "Measures what a run's speed depends on.", kBenchmarks},
                  arguments);
}

}  // namespace terrace::tools
