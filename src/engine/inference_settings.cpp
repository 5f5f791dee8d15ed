#include "terrace/engine/inference_settings.h"

namespace terrace::engine {
namespace {

void add_model(OptionTable& table, std::string& model) {
  table.add({.flags = {"model", "model_name_or_path"},
             .field = field(model),
             .help = "output folder of a run, checkpoint or model folder",
             .required = true});
}

void add_compute(OptionTable& table, Settings& base) {
  using MaybeDType = std::optional<DType>;
  table.group("Computation");
  table.add(
      {.flags = {"device"},
       .field = choice<DeviceChoice>(base.placement.device, {{"auto", DeviceChoice::automatic},
                                                             {"cuda", DeviceChoice::cuda},
                                                             {"cpu", DeviceChoice::cpu}}),
       .help = "where the model is computed"});
  table.add({.flags = {"dtype"},
             .field = choice<MaybeDType>(base.numerics.dtype, {{"auto", std::nullopt},
                                                               {"bf16", DType::bf16},
                                                               {"fp16", DType::f16},
                                                               {"fp32", DType::f32}}),
             .help = "compute type; auto is bf16 where the hardware has it"});
  table.add({.flags = {"threads"},
             .field = field(base.ranks.threads),
             .help = "compute threads; 0: what affinity and container give",
             .unit = "threads",
             .minimum = 0});
}

}  // namespace

OptionTable evaluate_options(EvaluateSettings& settings) {
  OptionTable table;
  table.group("Model and data");
  add_model(table, settings.base.model);
  Field files = field(settings.base.data.files);
  files.split_commas = false;
  table.add({.flags = {"data", "eval_data"},
             .field = files,
             .help = "files and folders to measure the loss on",
             .required = true});
  table.add({.flags = {"max_length", "max_seq_length"},
             .field = field(settings.base.data.max_length),
             .help = "length of a sequence",
             .unit = "tokens",
             .default_note = "1024, or less where the model was made for less",
             .minimum = 2});
  table.add({.flags = {"batch_size", "per_device_eval_batch_size"},
             .field = field(settings.base.batch.micro),
             .help = "sequences computed at once",
             .unit = "sequences",
             .default_note = "8",
             .minimum = 1});
  table.add({.flags = {"json"},
             .field = field(settings.json),
             .help = "write the result as one JSON object"});
  add_compute(table, settings.base);
  return table;
}

OptionTable generate_options(GenerateSettings& settings) {
  OptionTable table;
  table.group("Model and text");
  add_model(table, settings.base.model);
  table.add({.flags = {"prompt"},
             .field = field(settings.prompt),
             .help = "text to go on from",
             .default_note = "nothing"});
  table.add({.flags = {"max_new_tokens"},
             .field = field(settings.max_new_tokens),
             .help = "length of what is added",
             .unit = "tokens",
             .minimum = 1});
  table.add({.flags = {"temperature"},
             .field = field(settings.temperature),
             .help = "scatter of the choice; 0: always the likeliest token",
             .minimum = 0});
  table.add({.flags = {"top_k"},
             .field = field(settings.top_k),
             .help = "the likeliest tokens that are chosen among; 0: all",
             .unit = "tokens",
             .minimum = 0});
  table.add({.flags = {"seed"},
             .field = field(settings.base.numerics.seed),
             .help = "of the choice",
             .minimum = 0});
  add_compute(table, settings.base);
  return table;
}

}  // namespace terrace::engine
