#include <array>

#include "bench_all.h"
#include "bench_compute.h"
#include "bench_copy.h"
#include "bench_disk.h"
#include "bench_optimizer.h"
#include "subcommand.h"
#include "terrace/config/profile.h"
#include "terrace/core/error.h"
#include "terrace/io/file.h"
#include "terrace/io/free_space.h"
#include "terrace/io/run_folder.h"
#include "terrace/runtime/machine.h"

namespace terrace::tools {
namespace {

// Options that several benchmarks have, each said once.

void add_threads(config::OptionTable& table, int& threads) {
  table.add({.flags = {"threads"},
             .field = config::field(threads),
             .help = "threads; 0: what affinity and container give",
             .unit = "threads",
             .minimum = 0});
}

void add_repetitions(config::OptionTable& table, int& repetitions) {
  table.add({.flags = {"repetitions"},
             .field = config::field(repetitions),
             .help = "measured repetitions; their median is shown",
             .unit = "repetitions",
             .minimum = 1});
}

void add_json(config::OptionTable& table, bool& json) {
  table.add({.flags = {"json"},
             .field = config::field(json),
             .help = "write the result as one JSON object"});
}

void add_parameters(config::OptionTable& table, OptimizerBenchOptions& options) {
  table.add({.flags = {"parameters"},
             .field = config::field(options.parameters),
             .help = "length of the range that is updated",
             .unit = "parameters",
             .minimum = 1});
}

void add_model(config::OptionTable& table, ComputeBenchOptions& options) {
  table.add({.flags = {"model"}, .field = config::field(options.model), .help = "a preset"});
  table.add({.flags = {"rows", "batch_size"},
             .field = config::field(options.rows),
             .help = "sequences computed at once",
             .unit = "sequences",
             .minimum = 1});
  table.add({.flags = {"sequence", "max_length"},
             .field = config::field(options.sequence),
             .help = "length of a sequence",
             .unit = "tokens",
             .minimum = 1});
  table.add({.flags = {"dtype"},
             .field = config::choices<DType>(options.dtypes,
                                             {{"bf16", DType::bf16}, {"fp32", DType::f32}}),
             .help = "compute types"});
}

void add_state_size(config::OptionTable& table, DiskBenchOptions& options) {
  table.add({.flags = {"size"},
             .field = config::size_field(options.size),
             .help = "state that is moved; twice as much is reserved on the drives together",
             .unit = "bytes"});
}

template <class Result>
void show(const Result& result, bool json) {
  print(json ? to_json(result) : to_table(result));
}

int run_copy(Context& context, const Arguments& arguments) {
  CopyBenchOptions options;
  bool json = false;
  config::OptionTable table;
  table.group("Options");
  table.add({.flags = {"size"},
             .field = config::size_field(options.bytes),
             .help = "one copy",
             .unit = "bytes"});
  table.add({.flags = {"copies"},
             .field = config::field(options.copies),
             .help = "copies queued behind each other in a repetition",
             .unit = "copies",
             .minimum = 1});
  add_repetitions(table, options.repetitions);
  add_json(table, json);
  if (!parse(context, table, "terrace bench copy [OPTION ...]", arguments)) return 0;
  Attention attention(context);
  const runtime::Machine machine = runtime::make_machine({.runs_here = false}, context.log);
  show(bench_copy(*machine.device, options, attention.watch), json);
  return 0;
}

int run_optimizer(Context& context, const Arguments& arguments) {
  using optim::MasterFormat;
  OptimizerBenchOptions options;
  bool json = false;
  config::OptionTable table;
  table.group("Options");
  add_parameters(table, options);
  table.add({.flags = {"state"},
             .field = config::choices<optim::StateFormat>(
                 options.states, {{"fp32", {MasterFormat::fp32, DType::f32}},
                                  {"split", {MasterFormat::split, DType::f32}},
                                  {"fp32+bf16_moments", {MasterFormat::fp32, DType::bf16}},
                                  {"split+bf16_moments", {MasterFormat::split, DType::bf16}}}),
             .help = "formats of the optimizer's state"});
  table.add(
      {.flags = {"gradient"},
       .field = config::choices<DType>(
           options.gradients, {{"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp32", DType::f32}}),
       .help = "types of the gradient"});
  add_threads(table, options.threads);
  table.add({.flags = {"every_target"},
             .field = config::field(options.every_target),
             .help = "measure every instruction set, not only the best one"});
  add_repetitions(table, options.repetitions);
  add_json(table, json);
  if (!parse(context, table, "terrace bench optimizer [OPTION ...]", arguments)) return 0;
  Attention attention(context);
  show(bench_optimizer(options, attention.watch), json);
  return 0;
}

void add_paths(config::OptionTable& table, std::vector<std::string>& paths, bool required) {
  table.add({.flags = {"path"},
             .field = config::field(paths),
             .help = "folders, one a drive: DIR[,DIR]",
             .required = required});
}

/// The folders of `--path`, which are refused before anything is measured.
std::vector<std::filesystem::path> drives_of(const std::vector<std::string>& paths) {
  std::vector<std::filesystem::path> drives(paths.begin(), paths.end());
  io::require_distinct_folders("--path", drives);
  for (const std::filesystem::path& drive : drives) io::require_drive(drive);
  return drives;
}

void add_requests(config::OptionTable& table, DiskBenchOptions& options) {
  table.add({.flags = {"bs", "block"},
             .field = config::size_field(options.block),
             .help = "one transfer, a multiple of 256 KiB",
             .unit = "bytes"});
  table.add({.flags = {"iodepth", "depth"},
             .field = config::field(options.depth),
             .help = "transfers in flight a drive",
             .unit = "transfers",
             .minimum = 1,
             .maximum = 4096});
  table.add({.flags = {"runtime"},
             .field = config::field(options.runtime_seconds),
             .help = "repeat at least until so much time was measured",
             .unit = "seconds",
             .minimum = 0});
  table.add({.flags = {"ioengine", "engine"},
             .field = config::choice<io::DriverKind>(
                 options.driver,
                 {{"io_uring", io::DriverKind::uring}, {"threads", io::DriverKind::threads}}),
             .help = "how requests reach the kernel"});
  table.add({.flags = {"sqpoll"},
             .field = config::field(options.sqpoll),
             .help = "let a kernel thread poll for requests"});
  table.add({.flags = {"buffered"},
             .field = config::field(options.buffered),
             .help = "measure through the page cache where O_DIRECT is refused, instead of ending "
                     "with exit code 5"});
  table.add({.flags = {"raw"},
             .field = config::field(options.raw),
             .help =
                 "measure the same transfers by the engine alone too, in turns: what checksums, "
                 "versions and commits cost; reserves twice as much"});
}

int run_disk(Context& context, const Arguments& arguments) {
  DiskBenchOptions options;
  std::vector<std::string> paths;
  bool json = false;
  config::OptionTable table;
  table.group("Options (fio's names)");
  add_paths(table, paths, true);
  add_state_size(table, options);
  add_requests(table, options);
  add_repetitions(table, options.repetitions);
  add_json(table, json);
  const std::string_view usage = "terrace bench disk --path DIR[,DIR] [OPTION ...]";
  if (!parse(context, table, usage, arguments)) return 0;
  options.paths = drives_of(paths);
  Attention attention(context);
  const runtime::Machine machine = runtime::make_machine({.runs_here = false}, context.log);
  show(bench_disk(options, *machine.device, attention.watch, context.log), json);
  return 0;
}

int run_compute(Context& context, const Arguments& arguments) {
  ComputeBenchOptions options;
  bool json = false;
  config::OptionTable table;
  table.group("Options");
  add_model(table, options);
  add_threads(table, options.threads);
  add_repetitions(table, options.repetitions);
  add_json(table, json);
  if (!parse(context, table, "terrace bench compute [OPTION ...]", arguments)) return 0;
  Attention attention(context);
  show(bench_compute(options, attention.watch), json);
  return 0;
}

int run_all(Context& context, const Arguments& arguments) {
  AllBenchOptions options;
  options.optimizer.parameters = std::int64_t{1} << 26;
  options.optimizer.states.resize(1);
  std::string file;
  std::vector<std::string> paths;
  int threads = 0;
  int repetitions = 5;
  bool json = false;
  config::OptionTable table;
  table.group("Options");
  table.add({.flags = {"profile"},
             .field = config::field(file),
             .help = "the file that is written, for --profile of plan and train",
             .required = true});
  add_paths(table, paths, false);
  add_state_size(table, options.disk);
  add_model(table, options.compute);
  add_parameters(table, options.optimizer);
  add_threads(table, threads);
  add_repetitions(table, repetitions);
  add_json(table, json);
  const std::string_view usage = "terrace bench all --profile FILE [--path DIR[,DIR]] [OPTION ...]";
  if (!parse(context, table, usage, arguments)) return 0;
  options.disk.paths = drives_of(paths);
  options.optimizer.threads = options.compute.threads = threads;
  for (int* count : {&options.copy.repetitions, &options.optimizer.repetitions,
                     &options.compute.repetitions, &options.disk.repetitions}) {
    *count = repetitions;
  }
  Attention attention(context);
  io::OutputFile output(file);  // what cannot be written is found before the minutes of measuring
  const plan::HardwareProfile profile = bench_all(options, attention.watch, context.log);
  const std::string text = config::profile_json(profile);
  output.write(text);
  output.commit();
  print(json ? text : to_table(profile));
  return 0;
}

constexpr std::array kBenchmarks = {
    Subcommand{"copy", "copies between host and device, one way and both", run_copy},
    Subcommand{"disk", "the page store on the drives: read, write and mixed", run_disk},
    Subcommand{"optimizer", "the optimizer's update in memory, against streams without arithmetic",
               run_optimizer},
    Subcommand{"compute", "the operations on a model's shapes, against oneDNN's plain product",
               run_compute},
    Subcommand{"all", "what a prediction needs, into a profile for plan and train", run_all},
};

}  // namespace

int run_bench(Context& context, const Arguments& arguments) {
  return dispatch(context,
                  {"terrace bench", "Measures what a run's speed depends on.", kBenchmarks},
                  arguments);
}

}  // namespace terrace::tools
