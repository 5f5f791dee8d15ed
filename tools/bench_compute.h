#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/core/dtype.h"

namespace terrace::tools {

/// `terrace bench compute`: the host device's operations on one model's shapes.
struct ComputeBenchOptions {
  std::string model = "gpt2-124m";  ///< a preset
  std::int64_t rows = 4;
  std::int64_t sequence = 256;
  std::vector<DType> dtypes = {DType::bf16, DType::f32};
  int threads = 0;       ///< 0: all cores, see `choose_threads`
  int repetitions = 5;   ///< of each product and of the step, after one that is not counted
  bool products = true;  ///< measure the single products too, not only the step
};

/// One matrix product of the model against oneDNN's plain product of the same size: both sides not
/// transposed, dense, no bias, the result in the dtype of the operands. In turns; medians.
struct ProductBench {
  std::string name;  ///< "widen forward", "widen weight gradient", ...
  std::string dtype;
  std::int64_t m = 0, n = 0, k = 0;
  double gflops = 0;  ///< 10^9 multiplications and additions a second
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
};

struct ComputeBench {
  std::string machine;  ///< `Ops::description`
  std::vector<ProductBench> products;
  std::vector<StepBench> steps;
};

/// Errors: usage, for an unknown model or numbers that are not positive.
[[nodiscard]] ComputeBench bench_compute(const ComputeBenchOptions& options);

/// {"schema": "terrace.bench.compute/1", "machine", "products": [...], "steps": [...]} with the
/// members' names as keys.
[[nodiscard]] std::string to_json(const ComputeBench& bench);

/// Tables for people.
[[nodiscard]] std::string to_table(const ComputeBench& bench);

}  // namespace terrace::tools
