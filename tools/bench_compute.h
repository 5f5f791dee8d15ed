#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/core/dtype.h"
#include "terrace/train/watch.h"

namespace terrace::tools {

/// `terrace bench compute`: the host device's operations on one model's shapes.
struct ComputeBenchOptions {
  std::string model = "gpt2-124m";  ///< a preset
  std::int64_t rows = 4;
  std::int64_t sequence = 256;
  std::vector<DType> dtypes = {DType::bf16, DType::f32};
  int threads = 0;      ///< 0: all cores, see `choose_threads`
  int repetitions = 5;  ///< of the step and of each plain product, after one that is not counted
};

/// One matrix product within the step, against oneDNN's plain product of the same size and dtypes
/// by itself, in turns with the steps: neither side transposed, dense, nothing added. Means.
struct ProductBench {
  std::string form;  ///< "a bT + bias", "aT b", ...: as it lies in memory
  std::string target_dtype;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t calls = 0;  ///< a step
  double gflops = 0;       ///< 10^9 multiplications and additions a second
  double plain_gflops = 0;
  double fraction_of_plain = 0;
};

/// A kind of operation within one forward and backward of the whole model.
struct OperationBench {
  std::string name;
  double seconds = 0;
  double fraction_of_step = 0;
  double gflops = 0;  ///< 0 where nothing is multiplied
  std::int64_t calls = 0;
};

/// One forward and backward of the whole model, nothing recomputed, without the optimizer.
struct StepBench {
  std::string model;
  std::string dtype;
  std::int64_t rows = 0, sequence = 0;
  double seconds = 0;
  double tokens_per_second = 0;
  double gflops = 0;                       ///< of the model's own count, see `Model::forward_flops`
  std::vector<OperationBench> operations;  ///< longest first; their sum falls short by the queue's
  std::vector<ProductBench> products;      ///< longest first
  double products_fraction_of_step = 0;
  double products_fraction_of_plain = 0;  ///< seconds as plain products over seconds in the step
};

struct ComputeBench {
  std::string machine;  ///< `Ops::description`
  std::vector<StepBench> steps;
};

/// Errors: usage, for an unknown model or numbers that are not positive.
[[nodiscard]] ComputeBench bench_compute(const ComputeBenchOptions& options, train::Watch& watch);

/// {"schema": "terrace.bench.compute/1", "machine", "steps": [...]} with the
/// members' names as keys.
[[nodiscard]] std::string to_json(const ComputeBench& bench);

/// Tables for people.
[[nodiscard]] std::string to_table(const ComputeBench& bench);

}  // namespace terrace::tools
