#include <array>
#include <filesystem>
#include <optional>
#include <string>

#include "subcommand.h"
#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/checkpoint/metrics_file.h"
#include "terrace/checkpoint/model_folder.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/data/tokenizer.h"
#include "terrace/engine/model_source.h"
#include "terrace/io/file.h"
#include "terrace/kernels/cpu.h"

namespace terrace::tools {

int run_export(Context& context, const Arguments& arguments) {
  std::string from;
  std::string to;
  std::optional<DType> dtype;
  engine::OptionTable table;
  table.add({.flags = {"checkpoint"},
             .field = engine::field(from),
             .help = "checkpoint, or output folder of a run (its newest one)",
             .positional = true,
             .required = true});
  table.add({.flags = {"folder"},
             .field = engine::field(to),
             .help = "where the model goes: a new or empty folder",
             .positional = true,
             .required = true});
  table.add({.flags = {"dtype"},
             .field = engine::choice<std::optional<DType>>(dtype, {{"auto", std::nullopt},
                                                                   {"bf16", DType::bf16},
                                                                   {"fp16", DType::f16},
                                                                   {"fp32", DType::f32}}),
             .help = "type of the weights, rounded from the FP32 masters",
             .default_note = "the checkpoint's"});
  if (!parse(context, table, "terrace export CHECKPOINT DIR [OPTION ...]", arguments)) return 0;
  require(!std::filesystem::exists(to) ||
              (std::filesystem::is_directory(to) && std::filesystem::is_empty(to)),
          ErrorKind::usage, "{} is not an empty folder: name a new one", to);

  checkpoint::TrainingCheckpoint saved(checkpoint::resolve_checkpoint(from));
  const std::int64_t step = saved.trainer().global_step;
  const std::filesystem::path run(from);
  if (const auto last = checkpoint::last_logged_step(run / "metrics.jsonl"); last > step) {
    context.log.warning(
        "the run in {} has reached step {} since it saved {}, which is exported; the model that a "
        "finished run ends with is in the run's folder itself",
        from, last, saved.folder().string());
  }
  Attention attention(context);
  {
    engine::Activity verifying(attention.watch,
                               "verifying the checksums of " + saved.folder().filename().string());
    saved.verify(verifying.progress());
  }
  checkpoint::ModelDescription model;
  model.config = saved.config().config;
  model.dtype = dtype.value_or(saved.weights_dtype());
  model.base_json = saved.config().json;
  model.bos_token_id = saved.config().bos_token_id;
  model.eos_token_ids = saved.config().eos_token_ids;
  for (const std::filesystem::path& file : data::tokenizer_files(saved.folder())) {
    model.files.push_back({file.filename().string(), io::read_file(file)});
  }
  std::filesystem::create_directories(to);
  // Only for the names and shapes of its parameters.
  const auto ops = kernels::make_cpu_ops({}, context.log);
  const auto tensors = engine::tensor_shapes(model::Model(model.config, DType::f32, *ops));
  engine::Activity writing(attention.watch, "writing the model");
  checkpoint::WriteOptions options;
  options.progress = writing.progress();
  const std::uint64_t bytes = checkpoint::write_model_folder(to, model, tensors, saved, options);
  print(fmt::format("{}: the model of step {} in {}, {}\n", to, step, name_of(model.dtype),
                    format_bytes(bytes)));
  return 0;
}

}  // namespace terrace::tools
