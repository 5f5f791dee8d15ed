#include "foreign.h"
#include "terrace/engine/options.h"
#include "terrace/engine/settings.h"

namespace terrace::engine {
namespace {

void add_job(OptionTable& table, Settings& s) {
  table.group("Model, data and output");
  table.add({.keys = {"model"},
             .flags = {"model", "model_name_or_path"},
             .field = field(s.model),
             .help = "model folder, checkpoint, output folder of a run, or the name of a preset"});
  Field files = field(s.data.files);
  files.split_commas = false;
  table.add({.keys = {"data"},
             .flags = {"data"},
             .field = files,
             .help = "files and folders to train on"});
  Field eval_files = field(s.data.eval_files);
  eval_files.split_commas = false;
  table.add({.keys = {"eval_data"},
             .flags = {"eval_data"},
             .field = eval_files,
             .help = "files and folders to measure the evaluation loss on"});
  table.add({.keys = {"validation_fraction"},
             .flags = {"validation_fraction"},
             .field = field(s.data.validation_fraction),
             .help = "share of the training data kept back to measure the evaluation loss on",
             .minimum = 0,
             .maximum = 0.5});
  table.add({.keys = {"max_length"},
             .flags = {"max_length", "max_seq_length"},
             .field = field(s.data.max_length),
             .help = "length of a sequence",
             .unit = "tokens",
             .default_note = "1024, or less where the model was made for less",
             .minimum = 2});
  table.add({.keys = {"output"},
             .flags = {"output", "output_dir"},
             .field = field(s.output.folder),
             .help = "folder for metrics, checkpoints and the final model"});
  table.add({.keys = {"overwrite_output"},
             .flags = {"overwrite_output_dir", "overwrite_output"},
             .field = field(s.output.overwrite),
             .help =
                 "start anew in an output folder that is not empty: its checkpoints, final model, "
                 "metrics.jsonl, run.json and page store are removed"});
  table.add({.keys = {"resume"},
             .flags = {"resume", "resume_from_checkpoint"},
             .field = field(s.output.resume),
             .help =
                 "\"auto\" takes the newest committed store or checkpoint of the output folder, "
                 "or give a checkpoint",
             .default_note = "start anew"});
  table.add(
      {.keys = {"dry_run"},
       .flags = {"dry_run"},
       .field = field(s.output.dry_run),
       .help =
           "check everything, weights, drives and space too, and stop before anything is loaded"});
}

void add_length_and_batch(OptionTable& table, Settings& s) {
  table.group("Length and batch");
  table.add({.keys = {"num_train_epochs"},
             .flags = {"num_train_epochs", "epochs"},
             .field = field(s.length.epochs),
             .help = "passes over the data",
             .unit = "epochs",
             .minimum = 0});
  table.add({.keys = {"max_steps"},
             .flags = {"max_steps"},
             .field = field(s.length.max_steps),
             .help = "optimizer steps, instead of epochs when above 0",
             .unit = "steps",
             .default_note = "-1: as the epochs say",
             .minimum = -1});
  table.add({.keys = {"train_micro_batch_size_per_gpu"},
             .flags = {"per_device_train_batch_size", "train_micro_batch_size_per_gpu",
                       "micro_batch_size"},
             .field = field(s.batch.micro),
             .help = "micro-batch of one rank",
             .unit = "sequences",
             .default_note = "8, or as train_batch_size makes it",
             .minimum = 1});
  table.add({.keys = {"gradient_accumulation_steps"},
             .flags = {"gradient_accumulation_steps"},
             .field = field(s.batch.accumulation),
             .help = "micro-batches of a rank in one optimizer step",
             .unit = "micro-batches",
             .default_note = "1, or as train_batch_size makes it",
             .minimum = 1});
  table.add({.keys = {"train_batch_size"},
             .flags = {"train_batch_size"},
             .field = field(s.batch.train),
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
             .help = "one micro-batch after the other, or all of them through each unit"});
}

void add_optimizer(OptionTable& table, Settings& s) {
  OptimizerSettings& o = s.optimizer;
  table.group("Optimizer");
  table.add({.keys = {"optimizer.type"},
             .flags = {"optim", "optimizer"},
             .field = choice<optim::OptimizerType>(
                 o.type, {{"AdamW", optim::OptimizerType::adamw},
                          {"adamw_torch", optim::OptimizerType::adamw},
                          {"adamw_torch_fused", optim::OptimizerType::adamw},
                          {"Adam", optim::OptimizerType::adam},
                          {"Adagrad", optim::OptimizerType::adagrad},
                          {"Lion", optim::OptimizerType::lion}}),
             .help = "AdamW and Lion decouple the decay, Adam and Adagrad add it to the gradient"});
  table.add({.keys = {"optimizer.params.lr", "scheduler.params.warmup_max_lr"},
             .flags = {"learning_rate", "lr"},
             .field = field(o.learning_rate),
             .help = "peak learning rate",
             .default_note = "5e-05; a preset trained from scratch has its own",
             .minimum = 0});
  const std::array<double, 2> betas = {0.9, 0.999};
  table.add({.keys = {"optimizer.params.betas"},
             .flags = {"betas"},
             .field = field(o.betas),
             .help = "decay of the two moments",
             .default_note = "0.9,0.999; Lion 0.9,0.99"});
  table.add({.flags = {"adam_beta1"},
             .field = element_field(o.betas, 0, betas),
             .help = "decay of the first moment",
             .default_note = "as betas"});
  table.add({.flags = {"adam_beta2"},
             .field = element_field(o.betas, 1, betas),
             .help = "decay of the second moment",
             .default_note = "as betas"});
  table.add({.keys = {"optimizer.params.eps"},
             .flags = {"adam_epsilon"},
             .field = field(o.epsilon),
             .help = "added to the root of the second moment, after bias correction",
             .default_note = "1e-08; Adagrad 1e-10",
             .minimum = 0});
  table.add({.keys = {"optimizer.params.weight_decay"},
             .flags = {"weight_decay"},
             .field = field(o.weight_decay),
             .help = "decay of the weights, of matrices only unless decay_all",
             .minimum = 0});
  table.add({.keys = {"optimizer.decay_all"},
             .flags = {"decay_all"},
             .field = field(o.decay_all),
             .help = "decay norms and biases too"});
  table.add({.keys = {"optimizer.params.bias_correction"},
             .field = field(o.bias_correction),
             .help = "correct the moments for their start at zero"});
  table.add({.keys = {"optimizer.params.adam_w_mode"},
             .field = field(o.adam_w_mode),
             .help = "with type Adam: true decouples the decay as AdamW, false adds it to the "
                     "gradient",
             .default_note = "to be said where Adam decays"});
  table.add({.keys = {"gradient_clipping"},
             .flags = {"max_grad_norm", "gradient_clipping"},
             .field = field(o.max_grad_norm),
             .help = "largest global gradient norm; 0: no clipping",
             .minimum = 0});
  table.add({.keys = {"optimizer.state_format"},
             .flags = {"state_format"},
             .field = choice<optim::MasterFormat>(
                 o.state.master,
                 {{"fp32", optim::MasterFormat::fp32}, {"split", optim::MasterFormat::split}}),
             .help =
                 "fp32: 4 bytes of master a parameter; split: 2 beside a bf16 parameter, with the "
                 "same result"});
  table.add({.keys = {"optimizer.moments"},
             .flags = {"moments"},
             .field = choice<DType>(o.state.moments, {{"fp32", DType::f32}, {"bf16", DType::bf16}}),
             .help = "type of the moments; bf16 saves 4 bytes a parameter and is not exact"});
  table.add({.keys = {"max_skipped_steps"},
             .flags = {"max_skipped_steps"},
             .field = field(o.max_skipped_steps),
             .help = "steps with a non-finite gradient in a row that end the run; 0: never",
             .unit = "steps",
             .minimum = 0});
}

void add_schedule(OptionTable& table, Settings& s) {
  ScheduleSettings& c = s.schedule;
  table.group("Learning-rate schedule");
  table.add({.keys = {"scheduler.type"},
             .flags = {"lr_scheduler_type"},
             .field = choice<optim::ScheduleType>(
                 c.type, {{"linear", optim::ScheduleType::linear},
                          {"cosine", optim::ScheduleType::cosine},
                          {"constant", optim::ScheduleType::constant},
                          {"constant_with_warmup", optim::ScheduleType::constant_with_warmup},
                          {"WarmupDecayLR", optim::ScheduleType::linear},
                          {"WarmupCosineLR", optim::ScheduleType::cosine},
                          {"WarmupLR", optim::ScheduleType::constant_with_warmup}}),
             .help = "course of the rate after the warm-up (the names of both Trainer and "
                     "DeepSpeed)"});
  table.add({.keys = {"scheduler.params.warmup_num_steps"},
             .flags = {"warmup_steps"},
             .field = field(c.warmup_steps),
             .help = "length of the warm-up; 0: as warmup_ratio says",
             .unit = "steps",
             .minimum = 0});
  table.add({.keys = {"scheduler.warmup_ratio"},
             .flags = {"warmup_ratio"},
             .field = field(c.warmup_ratio),
             .help = "length of the warm-up as a share of all steps",
             .minimum = 0,
             .maximum = 1});
  table.add({.keys = {"scheduler.params.warmup_type"},
             .field = choice<optim::WarmupShape>(c.warmup_shape,
                                                 {{"linear", optim::WarmupShape::linear},
                                                  {"log", optim::WarmupShape::logarithmic}}),
             .help = "how the rate rises"});
  table.add({.keys = {"scheduler.params.warmup_min_lr"},
             .field = field(c.warmup_min_lr),
             .help = "rate at the start of the warm-up",
             .minimum = 0});
  table.add({.keys = {"scheduler.min_lr_ratio", "scheduler.params.cos_min_ratio"},
             .flags = {"min_lr_ratio"},
             .field = field(c.min_lr_ratio),
             .help = "share of the peak rate at which the decay ends",
             .minimum = 0,
             .maximum = 1});
  table.add({.keys = {"scheduler.params.total_num_steps"},
             .field = field(c.total_steps),
             .help = "length of the decay, warm-up included",
             .unit = "steps",
             .default_note = "the run's",
             .minimum = 1});
}

void add_numerics(OptionTable& table, Settings& s) {
  NumericsSettings& n = s.numerics;
  using MaybeDType = std::optional<DType>;
  const std::vector<std::pair<std::string, MaybeDType>> dtypes = {
      {"auto", std::nullopt}, {"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp32", DType::f32}};
  table.group("Numbers");
  table.add({.keys = {"dtype"},
             .flags = {"dtype"},
             .field = choice<MaybeDType>(n.dtype, dtypes),
             .help = "compute type; auto is bf16 where the hardware has it"});
  table.add({.keys = {"bf16.enabled"},
             .flags = {"bf16"},
             .field = dtype_switch(n.dtype, DType::bf16),
             .help = "compute in bf16; false: in fp32",
             .default_note = "as dtype"});
  table.add({.keys = {"fp16.enabled"},
             .flags = {"fp16"},
             .field = dtype_switch(n.dtype, DType::f16),
             .help = "compute in fp16 with a loss scale; false: in fp32",
             .default_note = "as dtype"});
  table.add({.keys = {"gradient_dtype", "communication_data_type"},
             .flags = {"gradient_dtype"},
             .field = choice<MaybeDType>(n.gradient_dtype, dtypes),
             .help = "type to which a step's gradient is rounded, once, before it is reduced; auto "
                     "is the compute type"});
  table.add({.keys = {"gradient_checkpointing"},
             .flags = {"gradient_checkpointing"},
             .field = field(n.gradient_checkpointing),
             .help = "recompute a unit's activations from its input instead of keeping them"});
  table.add({.keys = {"seed"},
             .flags = {"seed"},
             .field = field(n.seed),
             .help = "of initialisation and shuffling",
             .minimum = 0});
  table.add({.keys = {"fp16.loss_scale"},
             .field = field(n.loss_scale.loss_scale),
             .help = "fixed loss scale of fp16; 0: dynamic",
             .minimum = 0});
  table.add({.keys = {"fp16.initial_scale_power"},
             .field = field(n.loss_scale.initial_scale_power),
             .help = "the dynamic scale starts at 2 to this power",
             .minimum = 0,
             .maximum = 32});
  table.add({.keys = {"fp16.loss_scale_window"},
             .field = field(n.loss_scale.loss_scale_window),
             .help = "good steps after which the scale doubles",
             .unit = "steps",
             .minimum = 1});
  table.add({.keys = {"fp16.hysteresis"},
             .field = field(n.loss_scale.hysteresis),
             .help = "overflows before the scale halves",
             .unit = "steps",
             .minimum = 1});
  table.add({.keys = {"fp16.consecutive_hysteresis"},
             .field = field(n.loss_scale.consecutive_hysteresis),
             .help = "every good step gives the hysteresis back"});
  table.add({.keys = {"fp16.min_loss_scale"},
             .field = field(n.loss_scale.min_loss_scale),
             .help = "smallest dynamic scale",
             .minimum = 0});
}

void add_cadence(OptionTable& table, Settings& s) {
  CadenceSettings& c = s.cadence;
  table.group("Logging, evaluation and checkpoints");
  table.add({.keys = {"logging_steps", "steps_per_print"},
             .flags = {"logging_steps"},
             .field = field(c.logging_steps),
             .help = "progress is shown every so many steps (metrics.jsonl has them all)",
             .unit = "steps",
             .minimum = 1});
  table.add({.keys = {"eval_steps"},
             .flags = {"eval_steps"},
             .field = field(c.eval_steps),
             .help = "the evaluation loss is measured every so many steps; 0: at the end",
             .unit = "steps",
             .minimum = 0});
  table.add(
      {.keys = {"save_steps"},
       .flags = {"save_steps"},
       .field = field(c.save_steps),
       .help =
           "a checkpoint is written every so many steps and at the end; 0: none, the model alone "
           "is saved, and a finished run cannot be gone on with",
       .unit = "steps",
       .minimum = 0});
  table.add({.keys = {"save_total_limit"},
             .flags = {"save_total_limit"},
             .field = field(c.save_total_limit),
             .help = "newest checkpoints that are kept; 0: all",
             .unit = "checkpoints",
             .minimum = 0});
  table.add({.keys = {"trace"},
             .flags = {"trace"},
             .field = field(s.output.trace),
             .help = "file for a Chrome trace of the lanes",
             .default_note = "none"});
  table.add({.keys = {"trace_steps"},
             .flags = {"trace_steps"},
             .field = field(s.output.trace_steps),
             .help = "first and last step that are traced; the run must reach the first",
             .unit = "steps"});
}

}  // namespace

OptionTable settings_options(Settings& settings) {
  OptionTable table;
  add_job(table, settings);
  add_length_and_batch(table, settings);
  add_optimizer(table, settings);
  add_schedule(table, settings);
  add_numerics(table, settings);
  add_cadence(table, settings);
  add_placement_options(table, settings);
  table.add_foreign_keys(deepspeed_keys());
  table.add_foreign_flags(trainer_flags());
  return table;
}

}  // namespace terrace::engine
