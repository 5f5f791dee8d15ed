#include "terrace/train/export.h"

#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/checkpoint/held_values.h"
#include "terrace/checkpoint/metrics_file.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/data/tokenizer.h"
#include "terrace/io/entry.h"
#include "terrace/io/file.h"
#include "terrace/runtime/machine.h"
#include "terrace/train/model_source.h"

namespace terrace::train {
namespace {

namespace fs = std::filesystem;

checkpoint::ModelDescription describe(const checkpoint::TrainingCheckpoint& saved, DType dtype) {
  checkpoint::ModelDescription model;
  model.config = saved.config().config;
  model.dtype = dtype;
  model.base_json = saved.config().json;
  model.bos_token_id = saved.config().bos_token_id;
  model.eos_token_ids = saved.config().eos_token_ids;
  for (const fs::path& file : data::tokenizer_files(saved.folder())) {
    model.files.push_back({file.filename().string(), io::read_file(file)});
  }
  return model;
}

void warn_of_later_steps(const fs::path& run, const checkpoint::TrainingCheckpoint& saved,
                         Log& log) {
  const std::int64_t last = checkpoint::last_logged_step(run / "metrics.jsonl");
  if (last <= saved.trainer().global_step) return;
  log.warning(
      "the run in {} has reached step {} since it saved {}, which is exported; the model that a "
      "finished run ends with is in the run's folder itself",
      run.string(), last, saved.folder().string());
}

}  // namespace

Exported export_model(const ExportOptions& options, Watch& watch, Log& log) {
  const bool is_new = !io::is_there(options.to);
  require(is_new || (io::is_folder(options.to) && fs::is_empty(options.to)), ErrorKind::usage,
          "{} is not an empty folder: name a new one", options.to.string());
  checkpoint::TrainingCheckpoint saved(checkpoint::resolve_checkpoint(options.from));
  warn_of_later_steps(options.from, saved, log);
  {
    Activity verifying(watch, "verifying the checksums of " + saved.folder().filename().string());
    saved.verify(verifying.progress());
  }
  const checkpoint::ModelDescription model =
      describe(saved, options.dtype.value_or(saved.weights_dtype()));
  // Only for the names and shapes of its parameters.
  const runtime::Machine machine = runtime::make_machine({.threads = 1, .runs_here = false}, log);
  const auto tensors = tensor_shapes(model::Model(model.config, DType::f32, *machine.ops));
  using TooLarge = checkpoint::HeldValues::TooLarge;
  checkpoint::HeldValues weights(saved, model.dtype,
                                 options.saturate ? TooLarge::replaced : TooLarge::noted);
  Exported result{saved.trainer().global_step, model.dtype, 0};
  Activity writing(watch, "writing the model");
  checkpoint::WriteOptions write;
  write.progress = writing.progress();
  try {
    result.bytes = checkpoint::write_model_folder(options.to, model, tensors, weights, write);
  } catch (...) {
    std::error_code ignored;  // Of a folder that is not empty nothing is ours.
    if (is_new) fs::remove(options.to, ignored);
    throw;
  }
  if (weights.replaced() > 0) {
    log.warning("{} too large for {}: written as its largest number, {} (--saturate)",
                counted(weights.replaced(), "weight is", "weights are"), name_of(model.dtype),
                checkpoint::largest_of(model.dtype));
  }
  return result;
}

}  // namespace terrace::train
