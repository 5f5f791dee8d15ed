#include "bench_compute.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/log.h"
#include "terrace/core/workers.h"
#include "terrace/device/device.h"
#include "terrace/kernels/cpu.h"
#include "terrace/model/model.h"
#include "timed_ops.h"

namespace terrace::tools {
namespace {

using device::Buffer;
using kernels::View;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// The device, a stream, its operations, and memory that holds small finite numbers.
class Bench {
 public:
  explicit Bench(const ComputeBenchOptions& options)
      : options_(options),
        device_(device::make_host_device()),
        stream_(device_->make_stream("compute")),
        log_([](LogLevel, std::string_view) {}),
        ops_(kernels::make_cpu_ops({.threads = choose_threads(options.threads).threads}, log_)) {}

  [[nodiscard]] const ComputeBenchOptions& options() const { return options_; }
  [[nodiscard]] kernels::Ops& ops() const { return *ops_; }
  [[nodiscard]] device::Stream& stream() const { return *stream_; }

  [[nodiscard]] Buffer allocate(std::uint64_t bytes) const {
    Buffer buffer = device_->allocate(std::max<std::uint64_t>(bytes, 64), "the benchmark");
    std::memset(buffer.pointer().raw(), 0x3c, buffer.size());  // 0.0115 in FP32 and in bf16
    return buffer;
  }

  template <class Body>
  [[nodiscard]] double seconds_of(const Body& body) const {
    const std::int64_t start = now_us();
    body();
    stream_->synchronize();
    return seconds_since(start);
  }

 private:
  const ComputeBenchOptions& options_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  Log log_;
  std::unique_ptr<kernels::Ops> ops_;
};

struct NamedProduct {
  std::string name;
  kernels::MatmulArgs args;
};

/// The three products of each of the model's matrices, in their layouts.
std::vector<NamedProduct> products_of(const model::Config& config, const model::BatchShape& shape,
                                      DType dtype) {
  const bool in_out = config.architecture == model::Architecture::gpt2;
  const std::int64_t heads = config.num_attention_heads + 2 * config.num_key_value_heads;
  struct Matrix {
    std::string name;
    std::int64_t inputs, outputs;
  };
  const Matrix matrices[] = {
      {"qkv", config.hidden_size, heads * config.head_dim},
      {"attention output", config.num_attention_heads * config.head_dim, config.hidden_size},
      {"widen", config.hidden_size, config.intermediate_size},
      {"narrow", config.intermediate_size, config.hidden_size}};
  const std::int64_t n = shape.tokens();
  std::vector<NamedProduct> products;
  auto add = [&](const std::string& name, std::int64_t m, std::int64_t columns, std::int64_t k,
                 bool a_transposed, bool b_transposed) {
    kernels::MatmulArgs args;
    args.m = m;
    args.n = columns;
    args.k = k;
    args.a.dtype = args.b.dtype = dtype;
    args.target.dtype = a_transposed ? DType::f32 : dtype;
    args.a_transposed = a_transposed;
    args.b_transposed = b_transposed;
    products.push_back({name, args});
  };
  for (const Matrix& matrix : matrices) {
    add(matrix.name + " forward", n, matrix.outputs, matrix.inputs, false, !in_out);
    add(matrix.name + " input gradient", n, matrix.inputs, matrix.outputs, false, in_out);
    const std::int64_t m = in_out ? matrix.inputs : matrix.outputs;
    add(matrix.name + " weight gradient", m, matrix.inputs + matrix.outputs - m, n, true, false);
  }
  return products;
}

/// Runs one product often enough that the clock's resolution does not matter.
double product_seconds(const Bench& bench, const kernels::MatmulArgs& args) {
  constexpr int kCalls = 4;
  return bench.seconds_of([&] {
    for (int call = 0; call < kCalls; ++call) bench.ops().matmul(bench.stream(), args);
  }) / kCalls;
}

ProductBench measure(const Bench& bench, NamedProduct product) {
  kernels::MatmulArgs plain = product.args;
  plain.a_transposed = plain.b_transposed = false;
  plain.target.dtype = plain.a.dtype;
  const auto bytes = [](std::int64_t rows, std::int64_t columns, DType dtype) {
    return static_cast<std::uint64_t>(rows * columns) * size_of(dtype);
  };
  const Buffer a = bench.allocate(bytes(plain.m, plain.k, plain.a.dtype));
  const Buffer b = bench.allocate(bytes(plain.k, plain.n, plain.b.dtype));
  const Buffer target = bench.allocate(bytes(plain.m, plain.n, DType::f32));
  const Buffer scratch = bench.allocate(std::max(bench.ops().matmul_scratch_bytes(plain),
                                                 bench.ops().matmul_scratch_bytes(product.args)));
  std::vector<double> seconds;
  std::vector<double> plain_seconds;
  for (kernels::MatmulArgs* args : {&product.args, &plain}) {
    args->a.data = a.pointer();
    args->b.data = b.pointer();
    args->target.data = target.pointer();
    args->scratch = scratch.pointer();
  }
  for (int turn = 0; turn <= bench.options().repetitions; ++turn) {
    const double own = product_seconds(bench, product.args);
    const double other = product_seconds(bench, plain);
    if (turn == 0) continue;
    seconds.push_back(own);
    plain_seconds.push_back(other);
  }
  ProductBench result;
  result.name = product.name;
  result.dtype = name_of(plain.a.dtype);
  result.m = plain.m;
  result.n = plain.n;
  result.k = plain.k;
  const double gflop = 2e-9 * static_cast<double>(plain.m) * static_cast<double>(plain.n * plain.k);
  result.gflops = gflop / median(seconds);
  result.plain_gflops = gflop / median(plain_seconds);
  result.fraction_of_plain = result.gflops / result.plain_gflops;
  return result;
}

/// A whole model's memory on the device: what one forward and backward touches.
class WholeModel {
 public:
  WholeModel(const Bench& bench, const model::Config& config, model::BatchShape shape, DType dtype)
      : bench_(bench), timed_(bench.ops()), model_(config, dtype, timed_) {
    batch_.shape = shape;
    for (const model::ParameterSpec& parameter : model_.parameters()) {
      const auto count = static_cast<std::uint64_t>(parameter.elements());
      weights_.push_back(bench.allocate(count * size_of(dtype)));
      gradients_.push_back(bench.allocate(count * sizeof(float)));
    }
    std::uint64_t scratch = 0;
    const int units = static_cast<int>(model_.units().size());
    for (int unit = 0; unit < units; ++unit) {
      const model::UnitMemory memory = model_.memory(unit, shape);
      outputs_.push_back(bench.allocate(memory.boundary_bytes));
      saved_.push_back(bench.allocate(memory.saved_bytes));
      scratch = std::max({scratch, memory.forward_scratch_bytes, memory.backward_scratch_bytes});
      flops_ += 3 * model_.forward_flops(unit, shape);
    }
    scratch_ = bench.allocate(scratch);
    d_boundary_ = bench.allocate(outputs_.front().size());
    loss_ = bench.allocate(sizeof(double));
    tokens_ = bench.allocate(static_cast<std::uint64_t>(shape.tokens()) * sizeof(std::int32_t));
    const device::Span<std::int32_t> tokens(tokens_.pointer(),
                                            static_cast<std::size_t>(shape.tokens()));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens.on_host()[i] =
          static_cast<std::int32_t>(i * 7919 % static_cast<std::size_t>(config.vocab_size));
    }
    batch_.tokens = batch_.targets = tokens;
  }

  [[nodiscard]] TimedOps& timed() { return timed_; }
  [[nodiscard]] double flops() const { return flops_; }

  void enqueue_step() {
    const int head = static_cast<int>(model_.units().size()) - 1;
    for (int unit = 0; unit < head; ++unit) {
      model_.forward(bench_.stream(), unit, weights(unit), batch_, activations(unit));
    }
    model_.head_forward_backward(bench_.stream(), weights(head), batch_, activations(head),
                                 1.0F / static_cast<float>(batch_.shape.tokens()),
                                 d_boundary_.pointer(), gradients(head), loss_.pointer());
    for (int unit = head - 1; unit >= 0; --unit) {
      model_.backward(bench_.stream(), unit, weights(unit), batch_, activations(unit),
                      d_boundary_.pointer(), gradients(unit));
    }
  }

 private:
  [[nodiscard]] const std::vector<int>& parameters(int unit) const {
    return model_.units()[static_cast<std::size_t>(unit)].parameters;
  }

  std::span<const View> weights(int unit) {
    views_.clear();
    for (const int parameter : parameters(unit)) {
      views_.push_back(
          {weights_[static_cast<std::size_t>(parameter)].pointer(), model_.compute_dtype()});
    }
    return views_;
  }

  /// The embedding adds to a tied table that the head has written.
  std::span<const model::GradientView> gradients(int unit) {
    gradient_views_.clear();
    const int head = static_cast<int>(model_.units().size()) - 1;
    for (const int parameter : parameters(unit)) {
      const bool tied = unit == 0 && std::ranges::count(parameters(head), parameter) > 0;
      gradient_views_.push_back(
          {{gradients_[static_cast<std::size_t>(parameter)].pointer(), DType::f32}, tied});
    }
    return gradient_views_;
  }

  [[nodiscard]] model::UnitActivations activations(int unit) const {
    const auto at = static_cast<std::size_t>(unit);
    return {.input = unit > 0 ? outputs_[at - 1].pointer() : device::Pointer(),
            .output = outputs_[at].pointer(),
            .saved = saved_[at].pointer(),
            .scratch = scratch_.pointer()};
  }

  const Bench& bench_;
  TimedOps timed_;
  model::Model model_;
  model::Batch batch_;
  std::vector<Buffer> weights_, gradients_, outputs_, saved_;
  Buffer scratch_, d_boundary_, loss_, tokens_;
  std::vector<View> views_;
  std::vector<model::GradientView> gradient_views_;
  double flops_ = 0;
};

StepBench measure_step(const Bench& bench, const model::Config& config, model::BatchShape shape,
                       DType dtype) {
  WholeModel whole(bench, config, shape, dtype);
  std::vector<double> seconds;
  for (int turn = 0; turn <= bench.options().repetitions; ++turn) {
    if (turn == 1) whole.timed().restart();
    const double step = bench.seconds_of([&] { whole.enqueue_step(); });
    if (turn > 0) seconds.push_back(step);
  }
  double total = 0;
  for (const double step : seconds) total += step;
  StepBench result;
  result.model = bench.options().model;
  result.dtype = name_of(dtype);
  result.rows = shape.rows;
  result.sequence = shape.sequence;
  result.seconds = median(seconds);
  result.tokens_per_second = static_cast<double>(shape.tokens()) / result.seconds;
  result.gflops = whole.flops() * 1e-9 / result.seconds;
  const auto steps = static_cast<double>(seconds.size());
  for (const OperationTime& time : whole.timed().times()) {
    result.operations.push_back({.name = std::string(time.name),
                                 .seconds = time.seconds / steps,
                                 .fraction_of_step = time.seconds / total,
                                 .gflops = time.flops * 1e-9 / time.seconds,
                                 .calls = time.calls / static_cast<std::int64_t>(seconds.size())});
  }
  return result;
}

}  // namespace

ComputeBench bench_compute(const ComputeBenchOptions& options) {
  require(options.rows > 0 && options.sequence > 0 && options.repetitions > 0, ErrorKind::usage,
          "bench compute: rows is {}, sequence {}, repetitions {}; each must be at least 1.",
          options.rows, options.sequence, options.repetitions);
  const model::Config& config = model::preset(options.model).config;
  const model::BatchShape shape{options.rows, options.sequence};
  const Bench bench(options);
  ComputeBench result;
  result.machine = bench.ops().description();
  for (const DType dtype : options.dtypes) {
    if (options.products) {
      for (const NamedProduct& product : products_of(config, shape, dtype)) {
        result.products.push_back(measure(bench, product));
      }
    }
    result.steps.push_back(measure_step(bench, config, shape, dtype));
  }
  return result;
}

std::string to_json(const ComputeBench& bench) {
  using nlohmann::json;
  json products = json::array();
  for (const ProductBench& p : bench.products) {
    products.push_back({{"name", p.name},
                        {"dtype", p.dtype},
                        {"m", p.m},
                        {"n", p.n},
                        {"k", p.k},
                        {"gflops", p.gflops},
                        {"plain_gflops", p.plain_gflops},
                        {"fraction_of_plain", p.fraction_of_plain}});
  }
  json steps = json::array();
  for (const StepBench& s : bench.steps) {
    json operations = json::array();
    for (const OperationBench& o : s.operations) {
      operations.push_back({{"name", o.name},
                            {"seconds", o.seconds},
                            {"fraction_of_step", o.fraction_of_step},
                            {"gflops", o.gflops},
                            {"calls", o.calls}});
    }
    steps.push_back({{"model", s.model},
                     {"dtype", s.dtype},
                     {"rows", s.rows},
                     {"sequence", s.sequence},
                     {"seconds", s.seconds},
                     {"tokens_per_second", s.tokens_per_second},
                     {"gflops", s.gflops},
                     {"operations", operations}});
  }
  return json{{"schema", "terrace.bench.compute/1"},
              {"machine", bench.machine},
              {"products", products},
              {"steps", steps}}
             .dump(2) +
         "\n";
}

std::string to_table(const ComputeBench& bench) {
  std::string table = bench.machine + "\n\n";
  table += fmt::format("{:<34} {:<5} {:>18} {:>9} {:>9} {:>9}\n", "product", "dtype", "m x n x k",
                       "GFLOP/s", "plain", "fraction");
  for (const ProductBench& p : bench.products) {
    table += fmt::format("{:<34} {:<5} {:>18} {:>9.0f} {:>9.0f} {:>9.2f}\n", p.name, p.dtype,
                         fmt::format("{} x {} x {}", p.m, p.n, p.k), p.gflops, p.plain_gflops,
                         p.fraction_of_plain);
  }
  for (const StepBench& s : bench.steps) {
    table += fmt::format(
        "\n{}, {}, {} x {} tokens: {:.1f} ms, {:.0f} tokens/s, {:.0f} GFLOP/s\n{:<26} {:>9} {:>7} "
        "{:>9} {:>6}\n",
        s.model, s.dtype, s.rows, s.sequence, s.seconds * 1e3, s.tokens_per_second, s.gflops,
        "operation", "ms", "share", "GFLOP/s", "calls");
    for (const OperationBench& o : s.operations) {
      table += fmt::format("{:<26} {:>9.2f} {:>6.1f}% {:>9} {:>6}\n", o.name, o.seconds * 1e3,
                           o.fraction_of_step * 100,
                           o.gflops > 0 ? fmt::format("{:.0f}", o.gflops) : "", o.calls);
    }
  }
  return table;
}

}  // namespace terrace::tools
