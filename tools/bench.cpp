#include <array>

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

constexpr std::array kBenchmarks = {
    Subcommand{"optimizer", "the optimizer's update in memory, against streams without arithmetic",
               run_optimizer},
};

}  // namespace

int run_bench(Context& context, const Arguments& arguments) {
  return dispatch(context,
                  {"terrace bench", "Measures what a run's speed depends on.", kBenchmarks},
                  arguments);
}

}  // namespace terrace::tools
