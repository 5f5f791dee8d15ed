#include "bench_optimizer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/json.h"
#include "terrace/core/state_kind.h"
#include "terrace/core/units.h"
#include "terrace/core/workers.h"
#include "terrace/device/inline_stream.h"
#include "terrace/kernels/cpu.h"
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
  ~Memory() { munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] device::Span<std::byte> span() const { return {device::Pointer(data_), bytes_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

/// The arrays of a range of parameters, small positive numbers everywhere. Formats that keep a
/// state kind in the same number of bytes share its array, since what one leaves there is as good a
/// start for the other; but not one that a format only writes, in which the streams leave zeros.
class Range {
 public:
  Range(std::int64_t count, Workers& workers) : count_(count), workers_(workers) {}

  [[nodiscard]] kernels::ChunkViews views(optim::StateFormat state, DType gradient) {
    const bool is_split = state.master == MasterFormat::split;
    const auto master = array(StateKind::master, is_split ? 2 : 4, Access::read);
    const auto exp_avg = array(StateKind::exp_avg, size_of(state.moments), Access::read);
    const auto exp_avg_sq = array(StateKind::exp_avg_sq, size_of(state.moments), Access::read);
    const auto parameter =
        array(StateKind::parameter, 2, is_split ? Access::read : Access::only_written);
    kernels::ChunkViews chunk;
    chunk.count = count_;
    chunk.target = {master, exp_avg, exp_avg_sq, parameter};
    chunk.source = {master,
                    exp_avg,
                    exp_avg_sq,
                    {},
                    array(StateKind::gradient, size_of(gradient), Access::read)};
    if (is_split) chunk.source.parameter = parameter;
    return chunk;
  }

 private:
  static constexpr std::byte kPattern{0x3c};  // 0.0115 in FP32 and bf16, 1.06 in fp16
  enum class Access { read, only_written };

  device::Span<std::byte> array(StateKind kind, std::size_t size, Access access) {
    const auto bytes = count_ * static_cast<std::int64_t>(size);
    return arrays_.try_emplace({kind, size, access}, bytes, kPattern, workers_)
        .first->second.span();
  }

  std::int64_t count_;
  Workers& workers_;
  std::map<std::tuple<StateKind, std::size_t, Access>, Memory> arrays_;
};

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

/// One combination: what it takes to run it, and its times so far, a round each.
struct Variant {
  optim::StateFormat state;
  DType gradient;
  kernels::CpuTarget target;
  kernels::ChunkViews chunk;
  std::vector<double> step_seconds;
  std::vector<double> stream_seconds;
};

std::vector<Variant> variants_of(const OptimizerBenchOptions& options, Range& range) {
  std::vector<kernels::CpuTarget> targets = kernels::CpuTarget::all();
  if (!options.every_target) targets.resize(1);
  std::vector<Variant> variants;
  for (const kernels::CpuTarget target : targets) {
    for (const optim::StateFormat state : options.states) {
      for (const DType gradient : options.gradients) {
        variants.push_back({state, gradient, target, range.views(state, gradient), {}, {}});
      }
    }
  }
  return variants;
}

void run(Variant& variant, int round, Workers& workers) {
  const optim::Optimizer optimizer({}, {variant.state, variant.gradient, DType::bf16, 0});
  const kernels::StepArgs args = optimizer.step(variant.chunk, {round + 1, 1e-4, 0.5, 0.1});
  const auto stream = device::make_inline_stream();
  const auto ops = kernels::make_cpu_optimizer_ops(workers, variant.target);
  const double step = seconds_of([&] { ops->run(*stream, args); });
  const double streams = seconds_of(
      [&] { kernels::optimizer_streams(workers, args.layout, variant.chunk, variant.target); });
  if (round == 0) return;
  variant.step_seconds.push_back(step);
  variant.stream_seconds.push_back(streams);
}

/// Over the rounds, `a` / `b`.
Spread ratio(std::vector<double> a, const std::vector<double>& b) {
  std::ranges::transform(a, b, a.begin(), std::divides());
  return spread_of(std::move(a));
}

OptimizerBenchVariant report(const Variant& variant, const Variant& first, int threads) {
  const auto count = static_cast<double>(variant.chunk.count);
  OptimizerBenchVariant result;
  result.state = state_name(variant.state);
  result.gradient = name_of(variant.gradient);
  result.bytes_per_parameter = traffic(variant.state, variant.gradient);
  result.parameters_per_second = count / median(variant.step_seconds);
  result.gb_per_s = result.parameters_per_second * result.bytes_per_parameter * 1e-9;
  result.stream_gb_per_s =
      count * result.bytes_per_parameter * 1e-9 / median(variant.stream_seconds);
  result.fraction_of_stream = ratio(variant.stream_seconds, variant.step_seconds);
  result.speed_over_first = ratio(first.step_seconds, variant.step_seconds);
  result.threads = threads;
  result.target = variant.target.name();
  return result;
}

}  // namespace

std::vector<OptimizerBenchVariant> bench_optimizer(const OptimizerBenchOptions& options,
                                                   train::Watch& watch) {
  require(options.parameters > 0, ErrorKind::usage, "--parameters is {}, expected 1 or more.",
          options.parameters);
  require(options.repetitions > 0, ErrorKind::usage, "--repetitions is {}, expected 1 or more.",
          options.repetitions);
  const train::Activity measuring(watch, "measuring the optimizer");
  Workers workers(choose_threads(options.threads));
  Range range(options.parameters, workers);
  std::vector<Variant> variants = variants_of(options, range);
  for (int round = 0; round <= options.repetitions; ++round) {
    for (Variant& variant : variants) {
      measuring.check();
      run(variant, round, workers);
    }
  }
  std::vector<OptimizerBenchVariant> results;
  results.reserve(variants.size());
  for (const Variant& variant : variants) {
    results.push_back(report(variant, variants.front(), workers.threads()));
  }
  return results;
}

std::string to_json(const std::vector<OptimizerBenchVariant>& variants) {
  const auto ends = [](const Spread& spread) { return Json{spread.p5, spread.p95}; };
  auto list = Json::array();
  for (const OptimizerBenchVariant& variant : variants) {
    list.push_back({{"state", variant.state},
                    {"gradient", variant.gradient},
                    {"parameters_per_second", variant.parameters_per_second},
                    {"gb_per_s", variant.gb_per_s},
                    {"bytes_per_parameter", variant.bytes_per_parameter},
                    {"stream_gb_per_s", variant.stream_gb_per_s},
                    {"fraction_of_stream", variant.fraction_of_stream.median},
                    {"fraction_of_stream_p5_p95", ends(variant.fraction_of_stream)},
                    {"speed_over_first", variant.speed_over_first.median},
                    {"speed_over_first_p5_p95", ends(variant.speed_over_first)},
                    {"threads", variant.threads},
                    {"target", variant.target}});
  }
  const Json result = {{"schema", "terrace.bench.optimizer/1"}, {"variants", std::move(list)}};
  return json_text(result);
}

std::string to_table(const std::vector<OptimizerBenchVariant>& variants) {
  std::string table =
      fmt::format("{:<18} {:<8} {:<7} {:>7} {:>9} {:>8} {:>7} {:>12}  {:<20}  {:<20}\n", "state",
                  "gradient", "target", "threads", "Gparam/s", "B/param", "GB/s", "stream GB/s",
                  "of stream [p5, p95]", "over first [p5, p95]");
  const auto text = [](const Spread& spread) {
    return fmt::format("{:.3f} [{:.3f}, {:.3f}]", spread.median, spread.p5, spread.p95);
  };
  for (const OptimizerBenchVariant& v : variants) {
    table += fmt::format(
        "{:<18} {:<8} {:<7} {:>7} {:>9.3f} {:>8.0f} {:>7.2f} {:>12.2f}  {:<20}  {:<20}\n", v.state,
        v.gradient, v.target, v.threads, v.parameters_per_second * 1e-9, v.bytes_per_parameter,
        v.gb_per_s, v.stream_gb_per_s, text(v.fraction_of_stream), text(v.speed_over_first));
  }
  return table;
}

}  // namespace terrace::tools
