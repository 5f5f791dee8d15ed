#include "bench_optimizer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/core/workers.h"
#include "terrace/kernels/optimizer_streams.h"
#include "terrace/optim/optimizer.h"

namespace terrace::tools {
namespace {

using optim::MasterFormat;

/// Memory whose pages are first touched by the workers that will use them.
class Memory {
 public:
  Memory(std::int64_t bytes, std::byte pattern, Workers& workers)
      : bytes_(static_cast<std::size_t>(bytes)) {
    if (bytes_ == 0) return;
    void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(data != MAP_FAILED, ErrorKind::out_of_memory,
            "the benchmark needs {} more of memory: choose a smaller --parameters.",
            format_bytes(bytes_));
    madvise(data, bytes_, MADV_HUGEPAGE);  // fewer page faults; a refusal changes nothing
    data_ = static_cast<std::byte*>(data);
    workers.parallel_for(bytes, std::int64_t{1} << 21, [&](std::int64_t begin, std::int64_t end) {
      std::memset(data_ + begin, static_cast<int>(pattern), static_cast<std::size_t>(end - begin));
    });
  }
  ~Memory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

/// A range of parameters with its state and gradients: small positive numbers everywhere.
class Range {
 public:
  Range(std::int64_t count, optim::StateFormat state, DType gradient, Workers& workers)
      : is_split_(state.master == MasterFormat::split),
        count_(count),
        master_(count * (is_split_ ? 2 : 4), kPattern, workers),
        exp_avg_(count * size(state.moments), kPattern, workers),
        exp_avg_sq_(count * size(state.moments), kPattern, workers),
        parameter_(count * 2, kPattern, workers),
        gradient_(count * size(gradient), kPattern, workers) {}

  [[nodiscard]] kernels::ChunkViews views() const {
    kernels::ChunkViews chunk;
    chunk.count = count_;
    chunk.target = {master_.span(), exp_avg_.span(), exp_avg_sq_.span(), parameter_.span()};
    chunk.source = {master_.span(), exp_avg_.span(), exp_avg_sq_.span(), {}, gradient_.span()};
    if (is_split_) chunk.source.parameter = parameter_.span();
    return chunk;
  }

 private:
  static constexpr std::byte kPattern{0x3c};  // 0.0115 in FP32 and bf16, 1.06 in fp16
  static std::int64_t size(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

  bool is_split_;
  std::int64_t count_;
  Memory master_, exp_avg_, exp_avg_sq_, parameter_, gradient_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

template <class Body>
double seconds_of(const Body& body) {
  const std::int64_t start = now_us();
  body();
  return seconds_since(start);
}

std::string state_name(optim::StateFormat state) {
  return fmt::format("{}{}", optim::name_of(state.master),
                     state.moments == DType::bf16 ? "+bf16_moments" : "");
}

/// Bytes that the step reads and writes for each parameter.
double traffic(optim::StateFormat state, DType gradient) {
  const auto kept = optim::state_bytes_per_parameter(optim::OptimizerType::adamw, state);
  const std::size_t parameter = state.master == MasterFormat::split ? 4 : 2;
  return static_cast<double>(2 * kept + parameter + size_of(gradient));
}

OptimizerBenchVariant measure(const OptimizerBenchOptions& options, optim::StateFormat state,
                              DType gradient, kernels::CpuTarget target, Workers& workers) {
  const Range range(options.parameters, state, gradient, workers);
  const kernels::StateLayout layout{state.master, state.moments, gradient, DType::bf16};
  const optim::Optimizer optimizer({}, {state, gradient, DType::bf16, 0});
  constexpr auto kRule = optim::OptimizerType::adamw;
  std::vector<double> step_seconds;
  std::vector<double> ratios;
  std::vector<double> stream_seconds;
  for (int turn = 0; turn <= options.repetitions; ++turn) {
    const auto coefficients = optimizer.coefficients({turn + 1, 1e-4, 0.5, 0.1});
    const double step = seconds_of([&] {
      kernels::optimizer_step(workers, kRule, layout, range.views(), coefficients, target);
    });
    const double streams = seconds_of(
        [&] { kernels::optimizer_streams(workers, kRule, layout, range.views(), target); });
    if (turn == 0) continue;
    step_seconds.push_back(step);
    stream_seconds.push_back(streams);
    ratios.push_back(streams / step);
  }
  const auto count = static_cast<double>(options.parameters);
  OptimizerBenchVariant variant;
  variant.state = state_name(state);
  variant.gradient = name_of(gradient);
  variant.bytes_per_parameter = traffic(state, gradient);
  variant.parameters_per_second = count / median(step_seconds);
  variant.gb_per_s = variant.parameters_per_second * variant.bytes_per_parameter * 1e-9;
  variant.stream_gb_per_s = count * variant.bytes_per_parameter * 1e-9 / median(stream_seconds);
  variant.fraction_of_stream = median(ratios);
  variant.threads = workers.threads();
  variant.target = target.name();
  return variant;
}

}  // namespace

std::vector<OptimizerBenchVariant> bench_optimizer(const OptimizerBenchOptions& options) {
  require(options.parameters > 0, ErrorKind::usage, "--parameters is {}, expected 1 or more.",
          options.parameters);
  require(options.repetitions > 0, ErrorKind::usage, "--repetitions is {}, expected 1 or more.",
          options.repetitions);
  Workers workers(choose_threads(options.threads).threads);
  std::vector<kernels::CpuTarget> targets = kernels::CpuTarget::all();
  if (!options.every_target) targets.resize(1);
  std::vector<OptimizerBenchVariant> variants;
  for (const kernels::CpuTarget target : targets) {
    for (const optim::StateFormat state : options.states) {
      for (const DType gradient : options.gradients) {
        variants.push_back(measure(options, state, gradient, target, workers));
      }
    }
  }
  return variants;
}

std::string to_json(const std::vector<OptimizerBenchVariant>& variants) {
  auto list = nlohmann::ordered_json::array();
  for (const OptimizerBenchVariant& variant : variants) {
    list.push_back({{"state", variant.state},
                    {"gradient", variant.gradient},
                    {"parameters_per_second", variant.parameters_per_second},
                    {"gb_per_s", variant.gb_per_s},
                    {"bytes_per_parameter", variant.bytes_per_parameter},
                    {"stream_gb_per_s", variant.stream_gb_per_s},
                    {"fraction_of_stream", variant.fraction_of_stream},
                    {"threads", variant.threads},
                    {"target", variant.target}});
  }
  const nlohmann::ordered_json result = {{"schema", "terrace.bench.optimizer/1"},
                                         {"variants", std::move(list)}};
  return result.dump(2);
}

std::string to_table(const std::vector<OptimizerBenchVariant>& variants) {
  std::string table =
      fmt::format("{:<20} {:<8} {:<8} {:>7} {:>9} {:>8} {:>8} {:>11} {:>9}\n", "state", "gradient",
                  "target", "threads", "Gparam/s", "B/param", "GB/s", "stream GB/s", "fraction");
  for (const OptimizerBenchVariant& v : variants) {
    table +=
        fmt::format("{:<20} {:<8} {:<8} {:>7} {:>9.3f} {:>8.0f} {:>8.2f} {:>11.2f} {:>9.3f}\n",
                    v.state, v.gradient, v.target, v.threads, v.parameters_per_second * 1e-9,
                    v.bytes_per_parameter, v.gb_per_s, v.stream_gb_per_s, v.fraction_of_stream);
  }
  return table;
}

}  // namespace terrace::tools
