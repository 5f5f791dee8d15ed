#include "bench_copy.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>
#include <vector>

#include "spread.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/json.h"

namespace terrace::tools {
namespace {

using device::Stream;

/// The memory of one direction: a buffer of the device and two kinds of host memory.
struct Ends {
  Ends(device::Device& owner, std::uint64_t bytes)
      : device(owner.allocate(bytes, "the benchmark")),
        pinned(owner.allocate_pinned(bytes, "the benchmark")),
        pageable(bytes, std::byte{1}) {
    std::memset(pinned.host().data(), 1, bytes);  // pages that exist
  }
  device::Buffer device;
  device::Buffer pinned;
  std::vector<std::byte> pageable;
};

class Bench {
 public:
  Bench(device::Device& device, const CopyBenchOptions& options, const train::Activity& measuring)
      : options_(options),
        measuring_(measuring),
        device_(device),
        down_(device, options.bytes),
        up_(device, options.bytes),
        first_(device.make_stream("h2d")),
        second_(device.make_stream("d2h")) {}

  /// Median rate of `enqueue`, called for each copy, which moves `moved` times the bytes.
  template <class Enqueue>
  [[nodiscard]] double gb_per_s(double moved, const Enqueue& enqueue) const {
    const double seconds = median_seconds([&] {
      for (int copy = 0; copy < options_.copies; ++copy) enqueue();
    });
    return moved * static_cast<double>(options_.bytes) * options_.copies * 1e-9 / seconds;
  }

  void to_device(std::span<const std::byte> source) const {
    first_->copy_to_device(down_.device.pointer(), source);
  }
  void to_host(std::span<std::byte> target) const {
    second_->copy_to_host(target, up_.device.pointer());
  }
  void on_device() const {
    first_->copy_on_device(down_.device.pointer(), up_.device.pointer(), options_.bytes);
  }
  [[nodiscard]] Ends& down() { return down_; }
  [[nodiscard]] Ends& up() { return up_; }

  /// Two streams that wait for each other in turns.
  [[nodiscard]] double task_seconds() const {
    constexpr std::uint64_t kTurns = 1000;
    const auto there = device_.make_event();
    const auto back = device_.make_event();
    std::uint64_t turn = 0;
    const double seconds = median_seconds([&] {
      for (std::uint64_t i = 0; i < kTurns; ++i) {
        ++turn;
        first_->enqueue([] {});
        first_->record(*there, turn);
        second_->wait(*there, turn);
        second_->enqueue([] {});
        second_->record(*back, turn);
        first_->wait(*back, turn);
      }
    });
    return seconds / (2 * kTurns);
  }

 private:
  template <class Body>
  [[nodiscard]] double median_seconds(const Body& body) const {
    std::vector<double> seconds;
    for (int repetition = 0; repetition <= options_.repetitions; ++repetition) {
      measuring_.check();
      const std::int64_t begin = now_us();
      body();
      first_->synchronize();
      second_->synchronize();
      if (repetition > 0) seconds.push_back(seconds_since(begin));
    }
    return median(std::move(seconds));
  }

  const CopyBenchOptions& options_;
  const train::Activity& measuring_;
  device::Device& device_;
  Ends down_;
  Ends up_;
  std::unique_ptr<Stream> first_;
  std::unique_ptr<Stream> second_;
};

/// Each rate with its name, in order.
std::vector<std::pair<const char*, double>> rates_of(const CopyBench& bench) {
  return {{"h2d_gb_per_s", bench.h2d_gb_per_s},
          {"d2h_gb_per_s", bench.d2h_gb_per_s},
          {"both_gb_per_s", bench.both_gb_per_s},
          {"h2d_pageable_gb_per_s", bench.h2d_pageable_gb_per_s},
          {"d2h_pageable_gb_per_s", bench.d2h_pageable_gb_per_s},
          {"device_gb_per_s", bench.device_gb_per_s}};
}

}  // namespace

CopyBench bench_copy(device::Device& device, const CopyBenchOptions& options, train::Watch& watch) {
  require(options.bytes > 0 && options.copies > 0 && options.repetitions > 0, ErrorKind::usage,
          "bench copy: size is {}, copies {}, repetitions {}; each must be at least 1",
          options.bytes, options.copies, options.repetitions);
  const train::Activity measuring(watch, "measuring copies");
  Bench bench(device, options, measuring);
  const auto to_device = [&] { bench.to_device(bench.down().pinned.host()); };
  const auto to_host = [&] { bench.to_host(bench.up().pinned.host()); };
  CopyBench result;
  result.device = device.name();
  result.h2d_gb_per_s = bench.gb_per_s(1, to_device);
  result.d2h_gb_per_s = bench.gb_per_s(1, to_host);
  result.both_gb_per_s = bench.gb_per_s(2, [&] {
    to_device();
    to_host();
  });
  result.h2d_pageable_gb_per_s = bench.gb_per_s(1, [&] { bench.to_device(bench.down().pageable); });
  result.d2h_pageable_gb_per_s = bench.gb_per_s(1, [&] { bench.to_host(bench.up().pageable); });
  result.device_gb_per_s = bench.gb_per_s(1, [&] { bench.on_device(); });
  result.task_seconds = bench.task_seconds();
  return result;
}

std::string to_json(const CopyBench& bench) {
  Json json{{"schema", "terrace.bench.copy/1"}, {"device", bench.device}};
  for (const auto& [name, rate] : rates_of(bench)) json[name] = rate;
  json["task_seconds"] = bench.task_seconds;
  return json_text(json);
}

std::string to_table(const CopyBench& bench) {
  return fmt::format(
      "copies of the {} device, GB/s\n"
      "  pinned host to device    {:>8.2f}\n  device to pinned host    {:>8.2f}\n"
      "  both at once, summed     {:>8.2f}\n  pageable host to device  {:>8.2f}\n"
      "  device to pageable host  {:>8.2f}\n  within the device        {:>8.2f}\n"
      "a task that waits for another stream's: {:.1f} us\n",
      bench.device, bench.h2d_gb_per_s, bench.d2h_gb_per_s, bench.both_gb_per_s,
      bench.h2d_pageable_gb_per_s, bench.d2h_pageable_gb_per_s, bench.device_gb_per_s,
      bench.task_seconds * 1e6);
}

}  // namespace terrace::tools
