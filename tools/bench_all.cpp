#include "bench_all.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>

#include "terrace/core/clock.h"
#include "terrace/core/units.h"
#include "terrace/runtime/machine.h"
#include "terrace/train/report.h"

namespace terrace::tools {
namespace {

constexpr double kGiga = 1e9;

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

void add_compute(const ComputeBench& bench, plan::HardwareProfile& profile) {
  for (const StepBench& step : bench.steps) {
    auto& rate =
        step.dtype == "bf16" ? profile.bf16_flops_per_second : profile.fp32_flops_per_second;
    rate = step.gflops * kGiga;
  }
}

/// The share of its own speed that each of compute and optimizer keeps while the other works: the
/// mean of both. `compute` and `update` are what they reached alone.
double shared_cores(const AllBenchOptions& options, const StepBench& compute,
                    const OptimizerBenchVariant& update, train::Watch& watch) {
  ComputeBenchOptions steps = options.compute;
  steps.dtypes.resize(1);
  OptimizerBenchOptions updates = options.optimizer;
  updates.repetitions = 1;  // soon over: the last ones have the cores to themselves
  auto beside =
      std::async(std::launch::async, [&] { return bench_compute(steps, watch).steps.front(); });
  double update_gb_per_s = 0;
  int runs = 0;
  do {
    update_gb_per_s += bench_optimizer(updates, watch).front().gb_per_s;
    ++runs;
  } while (beside.wait_for(std::chrono::seconds(0)) != std::future_status::ready);
  const double share =
      (beside.get().gflops / compute.gflops + update_gb_per_s / runs / update.gb_per_s) / 2;
  return std::min(share, 1.0);
}

void add_disk(const DiskBenchResult& bench, plan::HardwareProfile& profile) {
  const auto median = [&](Pass pass, double PassTimes::*figure) {
    return bench.median(Way::store, pass, figure);
  };
  profile.commit_seconds = median(Pass::write, &PassTimes::flush_seconds) +
                           median(Pass::write, &PassTimes::manifest_seconds);
  // Without the commit, which the profile has as a figure of its own.
  const auto rate = [&](Pass pass) {
    const double seconds = median(pass, &PassTimes::seconds);
    const double moving = seconds - (pass == Pass::read ? 0 : profile.commit_seconds);
    return static_cast<double>(bench.bytes) / (moving > 0 ? moving : seconds);
  };
  const double read = rate(Pass::read);
  const double write = rate(Pass::write);
  const double mixed = rate(Pass::mixed);
  profile.disk_read_bytes_per_second = read;
  profile.disk_write_bytes_per_second = write;
  profile.disk_mixed_factor = plan::mixed_factor(read, write, mixed);
}

}  // namespace

plan::HardwareProfile bench_all(const AllBenchOptions& options, train::Watch& watch, Log& log) {
  plan::HardwareProfile profile;
  const runtime::Machine machine = runtime::make_machine({.runs_here = false}, log);
  log.info("measuring copies");
  const CopyBench copy = bench_copy(*machine.device, options.copy, watch);
  profile.h2d_bytes_per_second = copy.h2d_gb_per_s * kGiga;
  profile.d2h_bytes_per_second = copy.d2h_gb_per_s * kGiga;
  profile.device_bytes_per_second = copy.device_gb_per_s * kGiga;
  profile.task_seconds = copy.task_seconds;
  log.info("measuring the optimizer");
  const OptimizerBenchVariant update = bench_optimizer(options.optimizer, watch).front();
  profile.optimizer_bytes_per_second = update.gb_per_s * kGiga;
  log.info("measuring forward and backward of {}", options.compute.model);
  const ComputeBench compute = bench_compute(options.compute, watch);
  add_compute(compute, profile);
  if (machine.device->memory_is_host()) {
    log.info("measuring both at once");
    profile.shared_cores_factor = shared_cores(options, compute.steps.front(), update, watch);
  }
  if (!options.disk.paths.empty()) {
    log.info("measuring the drives");
    add_disk(bench_disk(options.disk, *machine.device, watch, log), profile);
  }
  profile.name = fmt::format("measured on {}, {}, {}", host_name(), compute.machine, utc_now());
  return profile;
}

std::string to_table(const plan::HardwareProfile& profile) {
  std::vector<std::vector<std::string>> rows;
  const auto bytes = [&](const char* name, std::optional<double> rate) {
    rows.push_back({name, rate ? format_rate(*rate) : "not measured"});
  };
  const auto flops = [&](const char* name, std::optional<double> rate) {
    rows.push_back({name, rate ? fmt::format("{:.1f} GFLOP/s", *rate / kGiga) : "not measured"});
  };
  bytes("  host to device", profile.h2d_bytes_per_second);
  bytes("  device to host", profile.d2h_bytes_per_second);
  bytes("  within the device", profile.device_bytes_per_second);
  bytes("  optimizer", profile.optimizer_bytes_per_second);
  flops("  compute, bf16", profile.bf16_flops_per_second);
  flops("  compute, fp32", profile.fp32_flops_per_second);
  rows.push_back({"  compute and optimizer beside each other keep",
                  fmt::format("{:.0f} %", profile.shared_cores_factor * 100)});
  bytes("  disk read", profile.disk_read_bytes_per_second);
  bytes("  disk write", profile.disk_write_bytes_per_second);
  if (profile.disk_read_bytes_per_second) {
    rows.push_back({"  beside the other, disks keep",
                    fmt::format("{:.0f} %", profile.disk_mixed_factor * 100)});
    rows.push_back({"  a commit", format_duration(profile.commit_seconds)});
  }
  rows.push_back(
      {"  a task beside its work", fmt::format("{:.1f} us", profile.task_seconds * 1e6)});
  return profile.name + "\n" + train::aligned(rows);
}

}  // namespace terrace::tools
