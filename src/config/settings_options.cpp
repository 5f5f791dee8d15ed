#include "foreign.h"
#include "terrace/config/options.h"
#include "terrace/config/settings.h"

namespace terrace::config {
namespace {

void add_job(OptionTable& table, Settings& s) {
  table.group("Model, data and output");
  table.add({.keys = {"model"},
             .flags = {"model", "model_name_or_path"},
             .field = field(s.model),
             .effect = Effect::identity,
             .help = "model folder, checkpoint, output folder of a run, or the name of a preset"});
  Field files = field(s.data.files);
  files.split_commas = false;
  table.add({.keys = {"data"},
             .flags = {"data"},
             .field = files,
             .effect = Effect::identity,
             .help = "files and folders to train on"});
  Field eval_files = field(s.data.eval_files);
  eval_files.split_commas = false;
  table.add({.keys = {"eval_data"},
             .flags = {"eval_data"},
             .field = eval_files,
             .effect = Effect::nothing,
             .help = "files and folders to measure the evaluation loss on"});
  table.add({.keys = {"validation_fraction"},
             .flags = {"validation_fraction"},
             .field = field(s.data.validation_fraction),
             .effect = Effect::identity,
             .help = "share of the training data kept back to measure the evaluation loss on",
             .minimum = 0,
             .maximum = 0.5});
  table.add({.keys = {"max_length"},
             .flags = {"max_length", "max_seq_length"},
             .field = field(s.data.max_length),
             .effect = Effect::identity,
             .help = "length of a sequence",
             .unit = "tokens",
             .default_note = "1024, or less where the model was made for less",
             .minimum = 2});
  table.add({.keys = {"output"},
             .flags = {"output", "output_dir"},
             .field = field(s.output.folder),
             .effect = Effect::nothing,
             .help = "folder for metrics, checkpoints and the final model"});
  table.add({.keys = {"overwrite_output"},
             .flags = {"overwrite_output_dir", "overwrite_output"},
             .field = field(s.output.overwrite),
             .effect = Effect::nothing,
             .help =
                 "start anew in an output folder that is not empty: its checkpoints, final model, "
                 "metrics.jsonl, run.json and page store are removed"});
  table.add({.keys = {"resume"},
             .flags = {"resume", "resume_from_checkpoint"},
             .field = refusing(field(s.output.resume), {{"true", "\"auto\" takes the newest"},
                                                        {"false", "leave it out to start anew"},
                                                        {"none", "leave it out to start anew"}}),
             .effect = Effect::nothing,
             .help =
                 "\"auto\" takes the newest committed store or checkpoint of the output folder, "
                 "or give a checkpoint",
             .default_note = "start anew"});
  table.add({.keys = {"no_lock"},
             .flags = {"no_lock"},
             .field = field(s.output.no_lock),
             .effect = Effect::nothing,
             .help = "go on where locks do not work, or cannot tell whether a run on another host "
                     "is over: you see to it that no other run uses these folders"});
  table.add(
      {.keys = {"dry_run"},
       .flags = {"dry_run"},
       .field = field(s.output.dry_run),
       .effect = Effect::nothing,
       .help =
           "check everything, weights, drives and space too, and stop before anything is loaded"});
}

void add_length_and_batch(OptionTable& table, Settings& s) {
  table.group("Length and batch");
  table.add({.keys = {"num_train_epochs"},
             .flags = {"num_train_epochs", "epochs"},
             .field = field(s.length.epochs),
             .effect = Effect::as_another,
             .help = "passes over the data",
             .unit = "epochs",
             .minimum = 0});
  table.add({.keys = {"max_steps"},
             .flags = {"max_steps"},
             .field = field(s.length.max_steps),
             .effect = Effect::losses,
             .help = "optimizer steps, instead of epochs when above 0",
             .unit = "steps",
             .default_note = "-1: as the epochs say",
             .minimum = -1});
  table.add({.keys = {"train_micro_batch_size_per_gpu"},
             .flags = {"per_device_train_batch_size", "train_micro_batch_size_per_gpu",
                       "micro_batch_size"},
             .field = field(s.batch.micro),
             .effect = Effect::losses_and_layout,
             .help = "micro-batch of one rank",
             .unit = "sequences",
             .default_note = "8, or as train_batch_size makes it",
             .minimum = 1,
             .maximum = 1 << 22});
  table.add({.keys = {"gradient_accumulation_steps"},
             .flags = {"gradient_accumulation_steps"},
             .field = field(s.batch.accumulation),
             .effect = Effect::losses_and_layout,
             .help = "micro-batches of a rank in one optimizer step",
             .unit = "micro-batches",
             .default_note = "1, or as train_batch_size makes it",
             .minimum = 1,
             .maximum = 1e6});
  table.add({.keys = {"train_batch_size"},
             .flags = {"train_batch_size"},
             .field = field(s.batch.train),
             .effect = Effect::losses,
             .help = "sequences of one optimizer step over all ranks: micro-batch x accumulation x "
                     "ranks",
             .unit = "sequences",
             .default_note = "the product",
             .minimum = 1});
  table.add({.keys = {"micro_batch_order"},
             .flags = {"micro_batch_order"},
             .field = choice<MicroBatchOrder>(s.batch.order,
                                              {{"auto", MicroBatchOrder::automatic},
                                               {"batch_major", MicroBatchOrder::batch_major},
                                               {"unit_major", MicroBatchOrder::unit_major}}),
             .effect = Effect::layout,
             .help = "one micro-batch after the other, or all of them through each unit"});
}

void add_cadence(OptionTable& table, Settings& s) {
  CadenceSettings& c = s.cadence;
  table.group("Logging, evaluation and checkpoints");
  table.add({.keys = {"logging_steps", "steps_per_print"},
             .flags = {"logging_steps"},
             .field = field(c.logging_steps),
             .effect = Effect::nothing,
             .help = "progress is shown every so many steps (metrics.jsonl has them all)",
             .unit = "steps",
             .minimum = 1});
  table.add({.keys = {"eval_steps"},
             .flags = {"eval_steps"},
             .field = field(c.eval_steps),
             .effect = Effect::nothing,
             .help = "the evaluation loss is measured every so many steps; 0: at the end",
             .unit = "steps",
             .minimum = 0});
  table.add(
      {.keys = {"save_steps"},
       .flags = {"save_steps"},
       .field = field(c.save_steps),
       .effect = Effect::nothing,
       .help =
           "a checkpoint is written every so many steps and at the end; 0: none, the model alone "
           "is saved, and a finished run cannot be gone on with",
       .unit = "steps",
       .minimum = 0});
  table.add({.keys = {"save_total_limit"},
             .flags = {"save_total_limit"},
             .field = field(c.save_total_limit),
             .effect = Effect::nothing,
             .help = "newest checkpoints that are kept; 0: all",
             .unit = "checkpoints",
             .minimum = 0});
  table.add({.keys = {"trace"},
             .flags = {"trace"},
             .field = field(s.output.trace),
             .effect = Effect::nothing,
             .help = "file for a Chrome trace of the lanes",
             .default_note = "none"});
  table.add({.keys = {"trace_steps"},
             .flags = {"trace_steps"},
             .field = field(s.output.trace_steps),
             .effect = Effect::nothing,
             .help = "first and last step that are traced; the run must reach the first",
             .unit = "steps"});
}

}  // namespace

OptionTable settings_options(Settings& settings) {
  OptionTable table;
  add_job(table, settings);
  add_length_and_batch(table, settings);
  add_numerics_options(table, settings);
  add_cadence(table, settings);
  add_placement_options(table, settings);
  table.add_foreign_keys(deepspeed_keys());
  table.add_foreign_flags(trainer_flags());
  return table;
}

}  // namespace terrace::config
