#include "metrics.h"

#include <fmt/core.h>
#include <sys/utsname.h>

#include <array>
#include <cmath>

#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/json.h"
#include "terrace/io/file.h"

namespace terrace::engine {
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

/// What the compute lane waited for, by the lane at fault: the step's exposed time.
Json wait_seconds(const StepTimes& times) {
  Json waits = Json::object();
  for (const Lane cause : kLanesWithWork) {
    if (cause == Lane::compute) continue;
    waits[key_of(cause)] = static_cast<double>(times.waited_for_us(cause)) * 1e-6;
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

MetricsFile::MetricsFile(const std::filesystem::path& path, const plan::Plan& plan)
    : path_(path), plan_(plan), file_(path, std::ios::app) {
  require(file_.good(), ErrorKind::io, "cannot write {}: check that the folder can be written to",
          path.string());
}

void MetricsFile::write(const StepMetrics& metrics) {
  const StepOutcome& outcome = *metrics.outcome;
  Json row;
  row["step"] = outcome.step.value;
  row["epoch"] = metrics.epoch;
  row["loss"] = finite(outcome.loss);
  row["grad_norm"] = finite(outcome.grad_norm);
  row["lr"] = outcome.learning_rate;
  row["tokens"] = metrics.tokens;
  row["tokens_per_second"] = static_cast<double>(metrics.tokens) / metrics.step_seconds;
  // The share of the machine's peak needs the peak, which only a measured profile knows.
  row["mfu"] = nullptr;
  row["flops_per_second"] = metrics.flops / metrics.step_seconds;
  row["skipped"] = outcome.skipped;
  row["step_seconds"] = metrics.step_seconds;
  Json busy = Json::object();
  for (const Lane lane : kLanesWithWork) {
    busy[key_of(lane)] = static_cast<double>(metrics.times->of(lane).busy_us) * 1e-6;
  }
  row["busy_seconds"] = std::move(busy);
  row["wait_seconds"] = wait_seconds(*metrics.times);
  Json moved = Json::object();
  for (const Lane lane : kLanesThatMove) moved[key_of(lane)] = metrics.times->of(lane).bytes;
  row["bytes_moved"] = std::move(moved);
  row["resident_bytes"] = resident_bytes(plan_);
  if (outcome.skip) row["nonfinite"] = outcome.nonfinite_parameter;
  if (metrics.eval_loss) row["eval_loss"] = finite(*metrics.eval_loss);
  file_ << json_line(row) << '\n' << std::flush;
  require(file_.good(), ErrorKind::io, "cannot write {}: is the disk full?", path_.string());
}

void write_run_record(const std::filesystem::path& path, const Settings& settings,
                      const plan::Plan& plan, const RunRecordContents& contents) {
  ::utsname system{};
  (void)::uname(&system);  // cannot fail for a valid pointer
  Json record;
  record["schema"] = "terrace-run-1";
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
  record["memory"] = std::move(memory);
  record["work_per_step"] = work_per_step(plan);
  record["fallbacks"] = contents.fallbacks;
  record["lost_log_lines"] = lost_lines(contents.lost_lines);
  record["config"] = json_from(effective_json(settings)).value();
  io::write_file(path, json_text(record));
}

}  // namespace terrace::engine
