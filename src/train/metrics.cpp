#include "metrics.h"

#include <fmt/core.h>
#include <sys/utsname.h>

#include <array>
#include <cmath>

#include "terrace/config/planning.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/json.h"
#include "terrace/io/file.h"
#include "terrace/plan/need.h"

namespace terrace::train {
namespace {

using plan::Lane;

constexpr std::array kLanesWithWork = {Lane::compute,   Lane::h2d,        Lane::d2h,
                                       Lane::disk_read, Lane::disk_write, Lane::optimizer};
constexpr std::array kLanesThatMove = {Lane::h2d, Lane::d2h, Lane::disk_read, Lane::disk_write};

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::string key_of(Lane lane) {
  std::string name(name_of(lane));
  std::ranges::replace(name, '-', '_');
  return name;
}

/// What of a step's row `value` gives, null where the times of the step are not known.
template <class Value>
Json known(const StepTiming* timing, Value&& value) {
  return timing == nullptr ? Json(nullptr) : Json(value());
}

/// What the compute lane waited for, by the lane at fault: the step's exposed time.
Json wait_seconds(const StepTiming* timing) {
  Json waits = Json::object();
  for (const Lane cause : kLanesWithWork) {
    if (cause == Lane::compute) continue;
    waits[key_of(cause)] = known(
        timing, [&] { return static_cast<double>(timing->times.waited_for_us(cause)) * 1e-6; });
  }
  return waits;
}

/// What a step gives each lane to do: FLOP to compute, bytes to the others.
Json work_per_step(const plan::Plan& plan) {
  Json work = Json::object();
  for (const Lane lane : kLanesWithWork) {
    double sum = 0;
    for (const plan::Task& task : plan.training.tasks) {
      if (task.lane != lane) continue;
      sum += lane == Lane::compute ? task.flops : static_cast<double>(task.bytes);
    }
    work[key_of(lane)] = sum;
  }
  return work;
}

Json resident_bytes(const plan::Plan& plan) {
  Json resident = Json::object();
  for (const memory::Tier tier : {memory::Tier::device, memory::Tier::host, memory::Tier::disk}) {
    resident[std::string(memory::name_of(tier))] = plan.memory.bytes(tier);
  }
  return resident;
}

Json lost_lines(const LineWriter::Losses& losses) {
  if (losses.lines == 0) return nullptr;
  return {{"lines", losses.lines}, {"error", errno_name(losses.error)}, {"since", losses.since}};
}

}  // namespace

std::string metrics_line(const checkpoint::StepRow& row, const StepTiming* timing,
                         const plan::Plan& plan) {
  Json json;
  json["step"] = row.step;
  json["epoch"] = row.epoch;
  json["loss"] = finite(row.loss);
  json["grad_norm"] = finite(row.grad_norm);
  json["lr"] = row.learning_rate;
  json["tokens"] = row.tokens;
  json["tokens_per_second"] =
      known(timing, [&] { return static_cast<double>(row.tokens) / timing->seconds; });
  // The share of the machine's peak needs the peak, which only a measured profile knows.
  json["mfu"] = nullptr;
  json["flops_per_second"] = known(timing, [&] { return timing->flops / timing->seconds; });
  json["skipped"] = row.skipped;
  json["step_seconds"] = known(timing, [&] { return timing->seconds; });
  Json busy = Json::object();
  for (const Lane lane : kLanesWithWork) {
    busy[key_of(lane)] =
        known(timing, [&] { return static_cast<double>(timing->times.of(lane).busy_us) * 1e-6; });
  }
  json["busy_seconds"] = std::move(busy);
  json["wait_seconds"] = wait_seconds(timing);
  Json moved = Json::object();
  for (const Lane lane : kLanesThatMove) {
    moved[key_of(lane)] = known(timing, [&] { return timing->times.of(lane).bytes; });
  }
  json["bytes_moved"] = std::move(moved);
  json["resident_bytes"] = resident_bytes(plan);
  if (!row.nonfinite.empty()) json["nonfinite"] = row.nonfinite;
  if (row.eval_loss) json["eval_loss"] = finite(*row.eval_loss);
  return json_line(json);
}

void write_run_record(const std::filesystem::path& path, const config::Settings& settings,
                      const plan::Plan& plan, const RunRecordContents& contents) {
  ::utsname system{};
  (void)::uname(&system);  // cannot fail for a valid pointer
  Json record;
  record["schema"] = "terrace-run-1";
  record["run_id"] = contents.run.text();
  record["version"] = TERRACE_VERSION;
  record["libraries"] = TERRACE_LIBRARIES;
  record["compiler"] = __VERSION__;
  record["system"] = fmt::format("{} {} {}", system.sysname, system.release, system.machine);
  record["written"] = utc_now();
  record["host"] = system.nodename;
  record["command"] = contents.command;
  record["device"] = contents.device;
  record["kernels"] = contents.kernels;
  record["threads"] = contents.threads;
  record["disk_engine"] = contents.disk_engine;
  record["placement"] = contents.placement;
  record["parameters"] = contents.parameters;
  record["total_steps"] = contents.total_steps;
  record["finished"] = contents.finished;
  record["commits_every_step"] = plan.commits_every_step;
  Json memory = Json::array();
  for (const memory::PurposeBytes& row : plan.memory.by_purpose()) {
    memory.push_back(
        {{"tier", memory::name_of(row.tier)}, {"purpose", row.purpose}, {"bytes", row.bytes}});
  }
  for (const plan::ProcessBytes& row : plan::process_rows(plan)) {
    memory.push_back({{"tier", "process"}, {"purpose", row.purpose}, {"bytes", row.bytes}});
  }
  record["memory"] = std::move(memory);
  record["work_per_step"] = work_per_step(plan);
  record["fallbacks"] = contents.fallbacks;
  record["lost_log_lines"] = lost_lines(contents.lost_lines);
  record["config"] = json_from(config::effective_json(settings)).value();
  io::write_file(path, json_text(record));
}

}  // namespace terrace::train
