#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/parse.h"

namespace terrace::config {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What `terrace train --deepspeed FILE` makes of a file with this text, and arguments after it.
Parsed read(const std::string& text, std::vector<std::string> arguments = {}) {
  const TextFile file(text);
  arguments.insert(arguments.begin(), {"--deepspeed", file.path()});
  return parse(arguments);
}

// As people paste it for a run with everything on NVMe, every value left to the Trainer's flags.
constexpr std::string_view kAutoFile = R"({
  "bf16": {"enabled": "auto"},
  "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2},
  "optimizer": {"type": "AdamW",
    "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupLR",
    "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme", "pin_memory": true,
      "buffer_count": 4, "fast_init": false},
    "offload_param": {"device": "cpu", "pin_memory": true, "buffer_count": 5,
      "buffer_size": 1e8, "max_in_cpu": 1e9},
    "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9,
    "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true},
  "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 2, "single_submit": false,
    "overlap_events": true},
  "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
  "wall_clock_breakdown": false})";

TEST(DeepSpeed, a_pasted_file_works_and_auto_takes_the_flags) {
  Parsed parsed = read(std::string(kAutoFile),
                       {"--learning_rate", "2e-5", "--weight_decay", "0.1", "--warmup_steps", "10",
                        "--per_device_train_batch_size", "2", "--bf16", "True"});
  const Settings& settings = parsed.settings;
  finalize(parsed.settings);
  EXPECT_EQ(settings.optimizer.learning_rate, 2e-5);
  EXPECT_EQ(settings.optimizer.weight_decay, 0.1);
  EXPECT_EQ(settings.schedule.type, optim::ScheduleType::warmup_lr);
  EXPECT_EQ(settings.schedule.warmup_steps, 10);
  EXPECT_EQ(settings.numerics.dtype, DType::bf16);
  EXPECT_EQ(settings.batch.micro, 2);
  EXPECT_EQ(settings.ranks.zero_stage, 3);
  EXPECT_EQ(settings.placement.optimizer.device, Placement::nvme);
  EXPECT_EQ(settings.placement.parameters.device, Placement::cpu);
  EXPECT_THAT(settings.placement.swap, ElementsAre("/nvme"));
  EXPECT_EQ(settings.placement.chunk_elements, 1'000'000'000);
  EXPECT_EQ(settings.placement.block_bytes, 262144U);
  EXPECT_EQ(settings.cadence.logging_steps, 2000);
}

TEST(DeepSpeed, every_key_without_meaning_is_listed_with_its_reason) {
  const Parsed parsed = read(std::string(kAutoFile));
  for (const std::string key :
       {"overlap_comm", "contiguous_gradients", "reduce_bucket_size", "stage3_max_live_parameters",
        "offload_param.buffer_size", "aio.thread_count", "wall_clock_breakdown"}) {
    EXPECT_THAT(parsed.notes, Contains(AllOf(HasSubstr(key), HasSubstr(" is ignored: "))));
  }
}

TEST(DeepSpeed, absent_keys_that_change_the_result_take_its_defaults_and_are_told) {
  const Parsed parsed =
      read(R"({"optimizer": {"type": "Adam"}, "scheduler": {"type": "WarmupCosineLR"}})");
  Settings settings = parsed.settings;
  finalize(settings);
  EXPECT_EQ(settings.numerics.dtype, DType::f32);
  EXPECT_EQ(settings.ranks.zero_stage, 0);
  EXPECT_EQ(settings.placement.optimizer.device, Placement::none);
  EXPECT_EQ(settings.placement.parameters.device, Placement::none);
  EXPECT_EQ(settings.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(settings.optimizer.type, optim::OptimizerType::adamw);  // adam_w_mode
  EXPECT_EQ(settings.schedule.warmup_shape, optim::WarmupShape::logarithmic);
  EXPECT_EQ(settings.schedule.warmup_steps, 1000);
  EXPECT_EQ(settings.schedule.min_lr_ratio, 1e-4);
  EXPECT_THAT(parsed.notes, Contains(AllOf(HasSubstr("DeepSpeed's defaults"),
                                           HasSubstr("optimizer.params.lr = 0.001"))));
}

TEST(DeepSpeed, cpu_checkpointing_says_where_the_inputs_of_blocks_are_kept) {
  const auto kept = [](const std::string& section, std::vector<std::string> arguments = {}) {
    return read("{\"activation_checkpointing\": {" + section + "}}", std::move(arguments))
        .settings.placement.activations.device;
  };
  EXPECT_EQ(kept(R"("cpu_checkpointing": true)"), Placement::cpu);
  EXPECT_EQ(kept(R"("cpu_checkpointing": false)"), Placement::none);
  EXPECT_EQ(kept(R"("partition_activations": true)"), Placement::none) << "its default";
  EXPECT_EQ(kept(R"("cpu_checkpointing": false)", {"--offload_activations", "cpu"}),
            Placement::cpu);
  EXPECT_EQ(kept(R"("cpu_checkpointing": true)", {"--offload_activations", "auto"}),
            Placement::automatic);
  EXPECT_THAT(usage_error([&] { kept(R"("cpu_checkpointing": true, "device": "none")"); }),
              HasSubstr("contradicts"));
}

TEST(DeepSpeed, flags_win_over_its_defaults_and_over_the_file) {
  const Parsed parsed = read(R"({"gradient_clipping": 0.5})",
                             {"--bf16", "--offload_optimizer", "cpu", "--max_grad_norm", "2"});
  EXPECT_EQ(parsed.settings.numerics.dtype, DType::bf16);
  EXPECT_EQ(parsed.settings.placement.optimizer.device, Placement::cpu);
  EXPECT_EQ(parsed.settings.optimizer.max_grad_norm, 2);
  EXPECT_THAT(parsed.notes, Contains(HasSubstr("--max_grad_norm = 2 overrides")));
  EXPECT_THAT(parsed.notes, Contains(HasSubstr("has no optimizer")));
}

TEST(DeepSpeed, what_would_change_the_numbers_is_refused) {
  const auto error = [](const std::string& text) { return usage_error([&] { read(text); }); };
  EXPECT_THAT(error(R"({"zero_optimization": {"zero_quantized_weights": true}})"),
              HasSubstr("not supported"));
  EXPECT_THAT(error(R"({"bf16": {"enabled": true, "bf16_optimizer_states": true}})"),
              HasSubstr("bf16_optimizer_states"));
  EXPECT_THAT(error(R"({"zenflow": {"topk_ratio": 0.1}})"), HasSubstr("zenflow"));
  EXPECT_THAT(error(R"({"zero_optimization": {"aio": {}}})"), HasSubstr("top level"));
  EXPECT_THAT(error(R"({"gradient_clipp1ng": 1})"), HasSubstr("gradient_clipping"));
}

TEST(DeepSpeed, adam_with_l2_is_told_from_adamw) {
  const auto type = [](const std::string& text, const std::vector<std::string>& arguments) {
    Settings settings = parse_file(text, arguments).settings;
    finalize(settings);
    return settings.optimizer.type;
  };
  const std::string l2 = R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})";
  EXPECT_EQ(type(l2, {"--weight_decay", "0.1"}), optim::OptimizerType::adam);
  EXPECT_EQ(type("{}", {"--optim", "adam"}), optim::OptimizerType::adam);
  EXPECT_THAT(usage_error([&] {
                type("{}", {"--optim", "adam", "--weight_decay", "0.1"});
              }),
              HasSubstr("adam_w_mode"));
}

}  // namespace
}  // namespace terrace::config
