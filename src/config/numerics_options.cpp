#include "foreign.h"
#include "terrace/config/options.h"
#include "terrace/config/settings.h"

namespace terrace::config {
namespace {

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
             .effect = Effect::losses_and_layout,
             .help = "AdamW and Lion decouple the decay, Adam and Adagrad add it to the gradient"});
  table.add({.keys = {"optimizer.params.lr", "scheduler.params.warmup_max_lr"},
             .flags = {"learning_rate", "lr"},
             .field = field(o.learning_rate),
             .effect = Effect::losses,
             .help = "peak learning rate",
             .default_note = "5e-05; a preset trained from scratch has its own",
             .minimum = 0});
  const std::array<double, 2> betas = {0.9, 0.999};
  table.add({.keys = {"optimizer.params.betas"},
             .flags = {"betas"},
             .field = field(o.betas),
             .effect = Effect::losses,
             .help = "decay of the two moments",
             .default_note = "0.9,0.999; Lion 0.9,0.99"});
  table.add({.flags = {"adam_beta1"},
             .field = element_field(o.betas, 0, betas),
             .effect = Effect::as_another,
             .help = "decay of the first moment",
             .default_note = "as betas"});
  table.add({.flags = {"adam_beta2"},
             .field = element_field(o.betas, 1, betas),
             .effect = Effect::as_another,
             .help = "decay of the second moment",
             .default_note = "as betas"});
  table.add({.keys = {"optimizer.params.eps"},
             .flags = {"adam_epsilon"},
             .field = field(o.epsilon),
             .effect = Effect::losses,
             .help = "added to the root of the second moment, after bias correction",
             .default_note = "1e-08; Adagrad 1e-10",
             .minimum = 0});
  table.add({.keys = {"optimizer.params.weight_decay"},
             .flags = {"weight_decay"},
             .field = field(o.weight_decay),
             .effect = Effect::losses,
             .help = "decay of the weights, of matrices only unless decay_all",
             .minimum = 0});
  table.add({.keys = {"optimizer.decay_all"},
             .flags = {"decay_all"},
             .field = field(o.decay_all),
             .effect = Effect::losses_and_layout,
             .help = "decay norms and biases too"});
  table.add({.keys = {"optimizer.params.bias_correction"},
             .field = field(o.bias_correction),
             .effect = Effect::losses,
             .help = "correct the moments for their start at zero"});
  table.add({.keys = {"optimizer.params.adam_w_mode"},
             .field = field(o.adam_w_mode),
             .effect = Effect::as_another,
             .help = "with type Adam: true decouples the decay as AdamW, false adds it to the "
                     "gradient",
             .default_note = "to be said where Adam decays"});
  table.add({.keys = {"gradient_clipping"},
             .flags = {"max_grad_norm", "gradient_clipping"},
             .field = refusing(field(o.max_grad_norm), {{"inf", "0 means no clipping"},
                                                        {"infinity", "0 means no clipping"},
                                                        {"none", "0 means no clipping"}}),
             .effect = Effect::losses_and_layout,
             .help = "largest global gradient norm; 0: no clipping",
             .minimum = 0});
  table.add({.keys = {"optimizer.state_format"},
             .flags = {"state_format"},
             .field = choice<optim::MasterFormat>(
                 o.state.master,
                 {{"fp32", optim::MasterFormat::fp32}, {"split", optim::MasterFormat::split}}),
             .effect = Effect::losses_and_layout,
             .help =
                 "fp32: 4 bytes of master a parameter; split: 2 beside a bf16 parameter, with the "
                 "same result"});
  table.add({.keys = {"optimizer.moments"},
             .flags = {"moments"},
             .field = choice<DType>(o.state.moments, {{"fp32", DType::f32}, {"bf16", DType::bf16}}),
             .effect = Effect::losses_and_layout,
             .help = "type of the moments; bf16 saves 4 bytes a parameter and is not exact"});
  table.add({.keys = {"max_skipped_steps"},
             .flags = {"max_skipped_steps"},
             .field = field(o.max_skipped_steps),
             .effect = Effect::nothing,
             .help = "steps with a non-finite gradient in a row that end the run; 0: never",
             .unit = "steps",
             .minimum = 0});
}

void add_schedule(OptionTable& table, Settings& s) {
  ScheduleSettings& c = s.schedule;
  table.group("Learning-rate schedule");
  table.add(
      {.keys = {"scheduler.type"},
       .flags = {"lr_scheduler_type"},
       .field = refusing(
           choice<optim::ScheduleType>(
               c.type, {{"linear", optim::ScheduleType::linear},
                        {"cosine", optim::ScheduleType::cosine},
                        {"constant", optim::ScheduleType::constant},
                        {"constant_with_warmup", optim::ScheduleType::constant_with_warmup},
                        {"WarmupDecayLR", optim::ScheduleType::warmup_decay_lr},
                        {"WarmupCosineLR", optim::ScheduleType::warmup_cosine_lr},
                        {"WarmupLR", optim::ScheduleType::warmup_lr}}),
           {{"cosine_with_min_lr", "choose cosine, and set --min_lr_ratio"},
            {"warmup_stable_decay", "it is not offered; constant_with_warmup is its stable part"},
            {"OneCycle", "DeepSpeed's OneCycle is not offered; WarmupCosineLR is near to it"},
            {"LRRangeTest", "DeepSpeed's LRRangeTest is not offered"}}),
       .effect = Effect::losses,
       .help = "course of the rate after the warm-up (the names of both Trainer and "
               "DeepSpeed)"});
  table.add({.keys = {"scheduler.params.warmup_num_steps"},
             .flags = {"warmup_steps"},
             .field = field(c.warmup_steps),
             .effect = Effect::losses,
             .help = "length of the warm-up; 0: as warmup_ratio says",
             .unit = "steps",
             .minimum = 0});
  table.add({.keys = {"scheduler.warmup_ratio"},
             .flags = {"warmup_ratio"},
             .field = field(c.warmup_ratio),
             .effect = Effect::losses,
             .help = "length of the warm-up as a share of all steps",
             .minimum = 0,
             .maximum = 1});
  table.add({.keys = {"scheduler.params.warmup_type"},
             .field = choice<optim::WarmupShape>(c.warmup_shape,
                                                 {{"linear", optim::WarmupShape::linear},
                                                  {"log", optim::WarmupShape::logarithmic}}),
             .effect = Effect::losses,
             .help = "how the rate rises"});
  table.add({.keys = {"scheduler.params.warmup_min_lr"},
             .field = field(c.warmup_min_lr),
             .effect = Effect::losses,
             .help = "rate at the start of the warm-up",
             .minimum = 0});
  table.add({.keys = {"scheduler.params.warmup_min_ratio"},
             .field = field(c.warmup_min_ratio),
             .effect = Effect::losses,
             .help = "the same for WarmupCosineLR, as a share of the peak rate",
             .minimum = 0,
             .maximum = 1});
  table.add({.keys = {"scheduler.min_lr_ratio", "scheduler.params.cos_min_ratio"},
             .flags = {"min_lr_ratio"},
             .field = field(c.min_lr_ratio),
             .effect = Effect::losses,
             .help = "share of the peak rate at which the decay ends",
             .minimum = 0,
             .maximum = 1});
  table.add({.keys = {"scheduler.params.total_num_steps"},
             .field = field(c.total_steps),
             .effect = Effect::losses,
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
             .effect = Effect::losses_and_layout,
             .help = "compute type; auto is bf16 where the hardware has it"});
  table.add({.keys = {"bf16.enabled"},
             .flags = {"bf16"},
             .field = dtype_switch(n.dtype, DType::bf16),
             .effect = Effect::as_another,
             .help = "compute in bf16; false: in fp32",
             .default_note = "as dtype"});
  table.add({.keys = {"fp16.enabled"},
             .flags = {"fp16"},
             .field = dtype_switch(n.dtype, DType::f16),
             .effect = Effect::as_another,
             .help = "compute in fp16 with a loss scale; false: in fp32",
             .default_note = "as dtype"});
  table.add({.keys = {"gradient_dtype", "communication_data_type"},
             .flags = {"gradient_dtype"},
             .field = choice<MaybeDType>(n.gradient_dtype, dtypes),
             .effect = Effect::losses_and_layout,
             .help = "type to which a step's gradient is rounded, once, before it is reduced; auto "
                     "is the compute type"});
  table.add({.keys = {"gradient_checkpointing"},
             .flags = {"gradient_checkpointing"},
             .field = field(n.gradient_checkpointing),
             .effect = Effect::layout,
             .help = "recompute a unit's activations from its input instead of keeping them"});
  table.add({.keys = {"seed"},
             .flags = {"seed"},
             .field = field(n.seed),
             .effect = Effect::identity,
             .help = "of initialisation and shuffling",
             .minimum = 0,
             .maximum = 0x1p63});
  table.add({.keys = {"fp16.loss_scale"},
             .field = field(n.loss_scale.loss_scale),
             .effect = Effect::losses,
             .help = "fixed loss scale of fp16; 0: dynamic",
             .minimum = 0});
  table.add({.keys = {"fp16.initial_scale_power"},
             .field = field(n.loss_scale.initial_scale_power),
             .effect = Effect::losses,
             .help = "the dynamic scale starts at 2 to this power",
             .minimum = 0,
             .maximum = 32});
  table.add({.keys = {"fp16.loss_scale_window"},
             .field = field(n.loss_scale.loss_scale_window),
             .effect = Effect::losses,
             .help = "good steps after which the scale doubles",
             .unit = "steps",
             .minimum = 1});
  table.add({.keys = {"fp16.hysteresis"},
             .field = field(n.loss_scale.hysteresis),
             .effect = Effect::losses,
             .help = "overflows before the scale halves",
             .unit = "steps",
             .minimum = 1});
  table.add({.keys = {"fp16.consecutive_hysteresis"},
             .field = field(n.loss_scale.consecutive_hysteresis),
             .effect = Effect::losses,
             .help = "every good step gives the hysteresis back"});
  table.add({.keys = {"fp16.min_loss_scale"},
             .field = field(n.loss_scale.min_loss_scale),
             .effect = Effect::losses,
             .help = "smallest dynamic scale",
             .minimum = 1});
}

}  // namespace

void add_numerics_options(OptionTable& table, Settings& settings) {
  add_optimizer(table, settings);
  add_schedule(table, settings);
  add_numerics(table, settings);
}

}  // namespace terrace::config
