#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "terrace/checkpoint/metrics_file.h"
#include "terrace/config/settings.h"
#include "terrace/core/line_writer.h"
#include "terrace/io/run_id.h"
#include "terrace/plan/plan.h"
#include "terrace/runtime/step.h"

namespace terrace::train {

/// How long a step took.
struct StepTiming {
  const runtime::StepTimes& times;
  double seconds = 0;
  double flops = 0;  ///< of forward and backward, recomputation not counted
};

/// A step's line of `metrics.jsonl`, one object, without its end. Without a timing, of a step whose
/// row is written again later, the same keys have null for what is not known any more.
[[nodiscard]] std::string metrics_line(const checkpoint::StepRow& row, const StepTiming* timing,
                                       const plan::Plan& plan);

/// What `run.json` records beside the effective configuration.
struct RunRecordContents {
  io::RunId run;
  std::string command;
  std::string device;
  std::string kernels;
  std::string placement;
  std::string threads;
  std::string disk_engine;
  std::int64_t parameters = 0;
  std::int64_t total_steps = 0;
  bool finished = false;  ///< the last step is done and the model is written
  std::vector<std::string> fallbacks;
  LineWriter::Losses lost_lines;  ///< of the log
};

/// Writes `run.json`, atomically: configuration, versions, hardware, memory, fall-backs taken.
void write_run_record(const std::filesystem::path& path, const config::Settings& settings,
                      const plan::Plan& plan, const RunRecordContents& contents);

}  // namespace terrace::train
