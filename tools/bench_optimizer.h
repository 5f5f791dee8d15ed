#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spread.h"
#include "terrace/core/dtype.h"
#include "terrace/optim/state_format.h"
#include "terrace/train/watch.h"

namespace terrace::tools {

/// `terrace bench optimizer`: the AdamW step on one large range in memory, bf16 parameters, in
/// place.
struct OptimizerBenchOptions {
  std::int64_t parameters = std::int64_t{1} << 28;
  std::vector<optim::StateFormat> states = {{optim::MasterFormat::fp32, DType::f32},
                                            {optim::MasterFormat::split, DType::f32}};
  std::vector<DType> gradients = {DType::bf16};
  int threads = 0;            ///< 0: all cores, see `choose_threads`
  bool every_target = false;  ///< every instruction set, not only the best one
  int repetitions = 5;        ///< rounds of all variants, after one that is not counted
};

/// One format measured. Rates are those of the median repetition.
struct OptimizerBenchVariant {
  std::string state;     ///< "fp32", "split", with "+bf16_moments"
  std::string gradient;  ///< "bf16", "fp16", "fp32"
  double parameters_per_second = 0;
  double gb_per_s = 0;  ///< 10^9 bytes read and written by the step
  double bytes_per_parameter = 0;
  /// The same arrays read and written without arithmetic (`kernels::optimizer_streams`), right
  /// after the step.
  double stream_gb_per_s = 0;
  Spread fraction_of_stream;  ///< over the rounds: time of the streams / of the step
  Spread speed_over_first;    ///< over the rounds: time of the first variant's step / of this one's
  int threads = 0;
  std::string target;  ///< instruction set
};

/// Measures every combination of the options' states, gradients and targets. They take turns on the
/// same memory, one step and one pass of streams each a round, so that their speeds compare however
/// the machine's changes.
/// Errors: usage, for numbers that are not positive; out_of_memory, saying how much was needed.
[[nodiscard]] std::vector<OptimizerBenchVariant> bench_optimizer(
    const OptimizerBenchOptions& options, train::Watch& watch);

/// {"schema": "terrace.bench.optimizer/1", "variants": [...]} with the members' names as keys; of a
/// spread the median under its name, and "NAME_p5_p95" with the two others.
[[nodiscard]] std::string to_json(const std::vector<OptimizerBenchVariant>& variants);

/// A table for people, a line a variant.
[[nodiscard]] std::string to_table(const std::vector<OptimizerBenchVariant>& variants);

}  // namespace terrace::tools
