#pragma once

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "terrace/core/line_writer.h"
#include "terrace/engine/settings.h"
#include "terrace/engine/step.h"
#include "terrace/plan/plan.h"

namespace terrace::engine {

/// One row of `metrics.jsonl`.
struct StepMetrics {
  const StepOutcome* outcome = nullptr;
  const StepTimes* times = nullptr;
  double epoch = 0;
  std::int64_t tokens = 0;  ///< target tokens of the step, all ranks
  double step_seconds = 0;
  double flops = 0;  ///< of forward and backward, recomputation not counted
  std::optional<double> eval_loss;
};

/// Appends to `metrics.jsonl`, one object a step, each line flushed. Single-owner.
class MetricsFile {
 public:
  /// Errors: io, with the path.
  MetricsFile(const std::filesystem::path& path, const plan::Plan& plan);
  void write(const StepMetrics& metrics);

 private:
  std::filesystem::path path_;
  const plan::Plan& plan_;
  std::ofstream file_;
};

/// What `run.json` records beside the effective configuration.
struct RunRecordContents {
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
void write_run_record(const std::filesystem::path& path, const Settings& settings,
                      const plan::Plan& plan, const RunRecordContents& contents);

}  // namespace terrace::engine
