#include <fmt/format.h>

#include <algorithm>

#include "bench_disk.h"
#include "terrace/core/json.h"

namespace terrace::tools {
namespace {

namespace fs = std::filesystem;

/// In the order of `kPasses` and of `Way`.
constexpr std::array kPassNames = {"read", "write", "mixed"};
constexpr std::array kWayNames = {"store", "raw", "looked"};

std::string name_of(Pass pass) { return kPassNames[static_cast<std::size_t>(pass)]; }

const std::vector<PassTimes>& times_of(const DiskBenchResult& result, Way way, Pass pass) {
  return result.times.at(way)[static_cast<std::size_t>(pass)];
}

/// How much longer the store's passes took than the engine's alone, repetition by repetition.
std::vector<double> ratios_to_raw(const DiskBenchResult& result, Pass pass) {
  std::vector<double> ratios;
  std::ranges::transform(times_of(result, Way::store, pass), times_of(result, Way::raw, pass),
                         std::back_inserter(ratios), [](const PassTimes& a, const PassTimes& b) {
                           return a.seconds / b.seconds;
                         });
  return ratios;
}

/// What one way gave, as members of `json`.
void add_way(const DiskBenchResult& result, Way way, Json& json) {
  for (const Pass pass : kPasses) {
    const Spread rate = result.gb_per_s(way, pass);
    json[name_of(pass) + "_gb_per_s"] = {
        {"median", rate.median}, {"p5", rate.p5}, {"p95", rate.p95}};
  }
  for (const Pass pass : kPasses) {
    json[name_of(pass) + "_cpu_seconds_per_gib"] = result.cpu_seconds_per_gib(way, pass);
  }
  json["write_seconds"] = result.median(way, Pass::write, &PassTimes::seconds);
  json["flush_seconds"] = result.median(way, Pass::write, &PassTimes::flush_seconds);
  json["manifest_seconds"] = result.median(way, Pass::write, &PassTimes::manifest_seconds);
}

std::string fio_job(const DiskBenchOptions& options, bool direct) {
  std::string files;
  for (const fs::path& path : options.paths) {
    files += (files.empty() ? "" : ":") + (path / "fio.tmp").string();
  }
  std::string text = fmt::format(
      "[global]\nioengine=io_uring\ndirect={}\nbs={}\niodepth={}\nsize={}\nfilename={}\n"
      "refill_buffers=0\nend_fsync=1\n",
      direct ? 1 : 0, options.block, options.depth * static_cast<int>(options.paths.size()),
      options.size, files);
  for (const char* kind : {"write", "read", "rw"}) {
    text += fmt::format("[{}]\nrw={}\nstonewall\n", kind, kind);
  }
  return text;
}

}  // namespace

double DiskBenchResult::median(Way way, Pass pass, double PassTimes::*figure) const {
  std::vector<double> values;
  std::ranges::transform(times_of(*this, way, pass), std::back_inserter(values),
                         [&](const PassTimes& one) { return one.*figure; });
  return tools::median(std::move(values));
}

Spread DiskBenchResult::gb_per_s(Way way, Pass pass) const {
  std::vector<double> rates;
  std::ranges::transform(
      times_of(*this, way, pass), std::back_inserter(rates),
      [&](const PassTimes& one) { return static_cast<double>(bytes) / one.seconds * 1e-9; });
  return spread_of(std::move(rates));
}

double DiskBenchResult::cpu_seconds_per_gib(Way way, Pass pass) const {
  return median(way, pass, &PassTimes::cpu_seconds) / static_cast<double>(bytes) *
         static_cast<double>(kGiB);
}

std::string to_json(const DiskBenchResult& result) {
  Json json = {{"schema", "terrace.bench.disk/1"}};
  add_way(result, Way::store, json);
  json.update({{"repetitions", result.repetitions()},
               {"size", result.options.size},
               {"block", result.options.block},
               {"depth", result.options.depth},
               {"engine", result.engine},
               {"direct", result.direct},
               {"registered", result.registered},
               {"checksum_cpu_seconds_per_gib", result.checksum_cpu_seconds_per_gib}});
  if (result.options.raw) {
    for (const Way way : {Way::raw, Way::looked}) {
      add_way(result, way, json[kWayNames[static_cast<std::size_t>(way)]]);
    }
    for (const Pass pass : kPasses) {
      json["times_raw"][name_of(pass)] = ratios_to_raw(result, pass);
    }
  }
  json["drives"] = Json::array();
  for (const DriveDescription& drive : result.drives) {
    json["drives"].push_back({{"path", drive.path},
                              {"device", drive.device},
                              {"model", drive.model},
                              {"rotational", drive.rotational},
                              {"numa_node", drive.numa_node}});
  }
  json["fallbacks"] = result.fallbacks;
  json["fio_job"] = fio_job(result.options, result.direct);
  return json_text(json);
}

std::string to_table(const DiskBenchResult& result) {
  std::string text = fmt::format("{:22}{:>14}{:>10}{:>10}{:>16}\n", "", "GB/s, median", "p5", "p95",
                                 "CPU s / GiB");
  for (const auto& [way, times] : result.times) {
    constexpr std::array kSuffixes = {"", ", engine alone", ", and a plain sum"};
    for (const Pass pass : kPasses) {
      const Spread rate = result.gb_per_s(way, pass);
      text += fmt::format("{:22}{:>14.3f}{:>10.3f}{:>10.3f}{:>16.3f}\n",
                          name_of(pass) + kSuffixes[static_cast<std::size_t>(way)], rate.median,
                          rate.p5, rate.p95, result.cpu_seconds_per_gib(way, pass));
    }
  }
  const auto seconds = [&](Way way, double PassTimes::*figure) {
    return format_duration(result.median(way, Pass::write, figure));
  };
  text += fmt::format(
      "{} repetitions of {} in blocks of {}, depth {}; {}, {}, buffers {}\n"
      "a checksum by itself takes {:.3f} CPU s / GiB; of the {} of a write pass its commit flushes "
      "for {}, writes the manifest for {}\n",
      result.repetitions(), format_bytes(result.bytes), format_bytes(result.options.block),
      result.options.depth, result.engine,
      result.direct ? "O_DIRECT" : "through the page cache, which is what was measured",
      result.registered ? "registered" : "not registered", result.checksum_cpu_seconds_per_gib,
      seconds(Way::store, &PassTimes::seconds), seconds(Way::store, &PassTimes::flush_seconds),
      seconds(Way::store, &PassTimes::manifest_seconds));
  if (result.options.raw) {
    text += fmt::format(
        "the engine alone writes as much in {}, one flush of {} included; store to engine, median "
        "of "
        "the pairs: read {:.3f}, write {:.3f}, mixed {:.3f} times as long\n",
        seconds(Way::raw, &PassTimes::seconds), seconds(Way::raw, &PassTimes::flush_seconds),
        median(ratios_to_raw(result, Pass::read)), median(ratios_to_raw(result, Pass::write)),
        median(ratios_to_raw(result, Pass::mixed)));
  }
  for (const DriveDescription& drive : result.drives) {
    text += fmt::format("{}: {} {}{}, NUMA node {}\n", drive.path,
                        drive.device.empty() ? "no local drive" : drive.device, drive.model,
                        drive.rotational ? " (rotational)" : "",
                        drive.numa_node < 0 ? "not known" : std::to_string(drive.numa_node));
  }
  return text + "\nThe same with fio, from a file of this:\n\n" +
         fio_job(result.options, result.direct);
}

}  // namespace terrace::tools
