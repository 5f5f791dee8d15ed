#include "bench_compute.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "spread.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/json.h"
#include "terrace/core/log.h"
#include "terrace/core/workers.h"
#include "terrace/device/device.h"
#include "terrace/model/model.h"
#include "terrace/runtime/machine.h"
#include "timed_ops.h"

namespace terrace::tools {
namespace {

using device::Buffer;
using kernels::View;

/// The device, a stream, its operations, and memory that holds small finite numbers.
class Bench {
 public:
  Bench(const ComputeBenchOptions& options, const train::Activity& measuring)
      : options_(options),
        measuring_(measuring),
        log_([](LogLevel, std::string_view) {}),
        machine_(runtime::make_machine({.threads = options.threads}, log_)),
        stream_(machine_.device->make_stream("compute")) {}

  [[nodiscard]] const ComputeBenchOptions& options() const { return options_; }
  [[nodiscard]] kernels::Ops& ops() const { return *machine_.ops; }
  [[nodiscard]] device::Stream& stream() const { return *stream_; }

  [[nodiscard]] Buffer allocate(std::uint64_t bytes) const {
    Buffer buffer = machine_.device->allocate(std::max<std::uint64_t>(bytes, 64), "the benchmark");
    for (std::size_t at = 0; at < buffer.size(); at += numbers_.size()) {
      stream_->copy_to_device(buffer.pointer() + at, std::span(numbers_).first(std::min(
                                                         numbers_.size(), buffer.size() - at)));
    }
    return buffer;
  }

  template <class Body>
  [[nodiscard]] double seconds_of(const Body& body) const {
    measuring_.check();
    const std::int64_t start = now_us();
    body();
    stream_->synchronize();
    return seconds_since(start);
  }

 private:
  const ComputeBenchOptions& options_;
  const train::Activity& measuring_;
  Log log_;
  std::vector<std::byte> numbers_{std::size_t{1} << 20,
                                  std::byte{0x3c}};  ///< 0.0115 in FP32 and in bf16
  runtime::Machine machine_;
  std::unique_ptr<device::Stream> stream_;
};

/// "aT b += target": how a product's operands lie and what is added.
std::string form_of(const kernels::MatmulArgs& args) {
  std::string form = args.a_transposed ? "aT " : "a ";
  form += args.b_transposed ? "bT" : "b";
  if (args.bias) form += " + bias";
  if (args.residual) form += " + residual";
  if (args.accumulate) form += " + target";
  return form;
}

/// oneDNN's plain product of the size and dtypes of another, with memory of its own.
class PlainProduct {
 public:
  PlainProduct(const Bench& bench, const kernels::MatmulArgs& like) : bench_(bench) {
    args_.m = like.m;
    args_.n = like.n;
    args_.k = like.k;
    args_.a.dtype = args_.b.dtype = like.a.dtype;
    args_.target.dtype = like.target.dtype;
    args_.a.data = allocate(args_.m * args_.k, like.a.dtype);
    args_.b.data = allocate(args_.k * args_.n, like.b.dtype);
    args_.target.data = allocate(args_.m * args_.n, like.target.dtype);
    buffers_.push_back(bench.allocate(bench.ops().scratch_bytes(args_)));
    args_.scratch = buffers_.back().pointer();
  }

  /// Seconds of one call.
  [[nodiscard]] double run() const {
    constexpr int kCalls = 3;
    return bench_.seconds_of([&] {
      for (int call = 0; call < kCalls; ++call) bench_.ops().run(bench_.stream(), args_);
    }) / kCalls;
  }

 private:
  device::Pointer allocate(std::int64_t elements, DType dtype) {
    buffers_.push_back(bench_.allocate(static_cast<std::uint64_t>(elements) * size_of(dtype)));
    return buffers_.back().pointer();
  }

  const Bench& bench_;
  kernels::MatmulArgs args_;
  std::vector<Buffer> buffers_;
};

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
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.tokens()));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int32_t>(i * 7919 % static_cast<std::size_t>(config.vocab_size));
    }
    bench.stream().copy_to_device(tokens_.pointer(), std::as_bytes(std::span(tokens)));
    bench.stream().synchronize();
    batch_.tokens = batch_.targets = {tokens_.pointer(), tokens.size()};
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

/// The products of a model's steps and their plain counterparts, which run in turns with the steps.
class Products {
 public:
  Products(const Bench& bench, const TimedOps& timed) {
    for (const ProductTime& product : timed.products()) {
      plain_.push_back({product.args, PlainProduct(bench, product.args), {}});
    }
  }

  void forget() {
    for (Plain& plain : plain_) plain.seconds.clear();
  }
  void run_plain() {
    for (Plain& plain : plain_) plain.seconds.push_back(plain.product.run());
  }

  /// Adds the products of `timed`, which ran in `steps` steps of `total` seconds, to `result`.
  void report(const TimedOps& timed, std::int64_t steps, double total, StepBench& result) const {
    double inside = 0;
    double as_plain = 0;
    for (const ProductTime& product : timed.products()) {
      const kernels::MatmulArgs& args = product.args;
      const double alone = plain_seconds(args);
      const double each = product.seconds / static_cast<double>(product.calls);
      const double gflop =
          2e-9 * static_cast<double>(args.m) * static_cast<double>(args.n * args.k);
      result.products.push_back({.form = form_of(args),
                                 .target_dtype = std::string(name_of(args.target.dtype)),
                                 .m = args.m,
                                 .n = args.n,
                                 .k = args.k,
                                 .calls = product.calls / steps,
                                 .gflops = gflop / each,
                                 .plain_gflops = gflop / alone,
                                 .fraction_of_plain = alone / each});
      inside += product.seconds;
      as_plain += alone * static_cast<double>(product.calls);
    }
    result.products_fraction_of_step = inside / total;
    result.products_fraction_of_plain = as_plain / inside;
  }

 private:
  struct Plain {
    kernels::MatmulArgs like;
    PlainProduct product;
    std::vector<double> seconds;
  };

  [[nodiscard]] double plain_seconds(const kernels::MatmulArgs& args) const {
    const auto found = std::ranges::find_if(
        plain_, [&](const Plain& plain) { return TimedOps::same_product(plain.like, args); });
    return std::accumulate(found->seconds.begin(), found->seconds.end(), 0.0) /
           static_cast<double>(found->seconds.size());
  }

  std::vector<Plain> plain_;
};

StepBench measure_step(const Bench& bench, const model::Config& config, model::BatchShape shape,
                       DType dtype) {
  WholeModel whole(bench, config, shape, dtype);
  const auto step = [&] { return bench.seconds_of([&] { whole.enqueue_step(); }); };
  step();
  Products products(bench, whole.timed());
  products.run_plain();
  products.forget();
  whole.timed().restart();
  std::vector<double> seconds;
  for (int turn = 0; turn < bench.options().repetitions; ++turn) {
    seconds.push_back(step());
    products.run_plain();
  }
  const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  StepBench result;
  result.model = bench.options().model;
  result.dtype = name_of(dtype);
  result.rows = shape.rows;
  result.sequence = shape.sequence;
  result.seconds = median(seconds);
  result.tokens_per_second = static_cast<double>(shape.tokens()) / result.seconds;
  result.gflops = whole.flops() * 1e-9 / result.seconds;
  const auto steps = static_cast<std::int64_t>(seconds.size());
  for (const OperationTime& time : whole.timed().times()) {
    result.operations.push_back({.name = std::string(time.name),
                                 .seconds = time.seconds / static_cast<double>(steps),
                                 .fraction_of_step = time.seconds / total,
                                 .gflops = time.flops * 1e-9 / time.seconds,
                                 .calls = time.calls / steps});
  }
  products.report(whole.timed(), steps, total, result);
  return result;
}

}  // namespace

ComputeBench bench_compute(const ComputeBenchOptions& options, train::Watch& watch) {
  require(options.rows > 0 && options.sequence > 0 && options.repetitions > 0, ErrorKind::usage,
          "bench compute: rows is {}, sequence {}, repetitions {}; each must be at least 1.",
          options.rows, options.sequence, options.repetitions);
  const model::Config& config = model::preset(options.model).config;
  const model::BatchShape shape{options.rows, options.sequence};
  const train::Activity measuring(watch, "measuring forward and backward");
  const Bench bench(options, measuring);
  ComputeBench result;
  result.machine = bench.ops().description();
  for (const DType dtype : options.dtypes) {
    result.steps.push_back(measure_step(bench, config, shape, dtype));
  }
  return result;
}

std::string to_json(const ComputeBench& bench) {
  Json steps = Json::array();
  for (const StepBench& s : bench.steps) {
    Json operations = Json::array();
    for (const OperationBench& o : s.operations) {
      operations.push_back({{"name", o.name},
                            {"seconds", o.seconds},
                            {"fraction_of_step", o.fraction_of_step},
                            {"gflops", o.gflops},
                            {"calls", o.calls}});
    }
    Json products = Json::array();
    for (const ProductBench& p : s.products) {
      products.push_back({{"form", p.form},
                          {"target_dtype", p.target_dtype},
                          {"m", p.m},
                          {"n", p.n},
                          {"k", p.k},
                          {"calls", p.calls},
                          {"gflops", p.gflops},
                          {"plain_gflops", p.plain_gflops},
                          {"fraction_of_plain", p.fraction_of_plain}});
    }
    steps.push_back({{"model", s.model},
                     {"dtype", s.dtype},
                     {"rows", s.rows},
                     {"sequence", s.sequence},
                     {"seconds", s.seconds},
                     {"tokens_per_second", s.tokens_per_second},
                     {"gflops", s.gflops},
                     {"operations", operations},
                     {"products", products},
                     {"products_fraction_of_step", s.products_fraction_of_step},
                     {"products_fraction_of_plain", s.products_fraction_of_plain}});
  }
  return json_text(
      {{"schema", "terrace.bench.compute/1"}, {"machine", bench.machine}, {"steps", steps}});
}

std::string to_table(const ComputeBench& bench) {
  std::string table = bench.machine + "\n";
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
    table += fmt::format("\n{:<18} {:<6} {:>20} {:>6} {:>9} {:>9} {:>9}\n", "product", "to",
                         "m x n x k", "calls", "GFLOP/s", "plain", "fraction");
    for (const ProductBench& p : s.products) {
      table += fmt::format("{:<18} {:<6} {:>20} {:>6} {:>9.0f} {:>9.0f} {:>9.2f}\n", p.form,
                           p.target_dtype, fmt::format("{} x {} x {}", p.m, p.n, p.k), p.calls,
                           p.gflops, p.plain_gflops, p.fraction_of_plain);
    }
    table += fmt::format("{:.1f}% of the step in products, at {:.1f}% of the speed of plain ones\n",
                         s.products_fraction_of_step * 100, s.products_fraction_of_plain * 100);
  }
  return table;
}

}  // namespace terrace::tools
