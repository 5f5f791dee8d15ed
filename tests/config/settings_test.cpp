#include "terrace/config/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/parse.h"

namespace terrace::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

BatchSettings resolved(BatchSettings batch, std::int64_t world_size) {
  resolve_batch(batch, world_size);
  return batch;
}

TEST(Batch, what_is_not_given_follows_from_the_rest) {
  BatchSettings all = resolved({}, 2);
  EXPECT_EQ(all.micro, 8);
  EXPECT_EQ(all.accumulation, 1);
  EXPECT_EQ(all.train, 16);
  EXPECT_EQ(resolved({.train = 24, .micro = 3}, 2).accumulation, 4);
  EXPECT_EQ(resolved({.train = 24, .accumulation = 3}, 2).micro, 4);
  EXPECT_EQ(resolved({.train = 24}, 2).micro, 12);
  EXPECT_EQ(resolved({.micro = 3, .accumulation = 4}, 2).train, 24);
  EXPECT_EQ(resolved({.train = 24, .micro = 3, .accumulation = 4}, 2).train, 24);
}

TEST(Batch, sizes_that_disagree_are_refused_with_the_arithmetic) {
  EXPECT_THAT(
      usage_error([] { resolved({.train = 32, .micro = 4, .accumulation = 2}, 2); }),
      HasSubstr("train_batch_size is 32, but micro-batch 4 x accumulation 2 x 2 ranks = 16"));
  EXPECT_THAT(usage_error([] { resolved({.train = 10, .micro = 4}, 1); }),
              HasSubstr("not a multiple of micro-batch 4 x 1 rank = 4"));
  EXPECT_THAT(usage_error([] { resolved({.train = 2}, 4); }), HasSubstr("4 ranks"));
}

TEST(Finalize, refuses_what_contradicts_or_cannot_be) {
  const auto error = [](const std::vector<std::string>& arguments) {
    Settings settings = parse(arguments).settings;
    return usage_error([&] { finalize(settings); });
  };
  EXPECT_THAT(error({"--adam_beta2", "1"}), HasSubstr("betas"));
  EXPECT_THAT(error({"--state_format", "split", "--fp16"}), HasSubstr("fp16"));
  EXPECT_THAT(error({"--num_train_epochs", "0"}), HasSubstr("nothing to train"));
  EXPECT_THAT(error({"--eval_data", "x", "--validation_fraction", "0.1"}), HasSubstr("eval_data"));
  EXPECT_THAT(error({"--resume", "auto", "--overwrite_output_dir"}), HasSubstr("resume"));
  for (const char* flag : {"offload_optimizer", "offload_param", "offload_activations"}) {
    EXPECT_THAT(error({std::string("--") + flag, "nvme"}),
                AllOf(HasSubstr(std::string(flag) + " is nvme"), HasSubstr("--swap DIR")));
  }
  EXPECT_THAT(error({"--swap", "/a,/b,/a"}), HasSubstr("/a twice"));
  EXPECT_THAT(error({"--swap", "/a,/proc/self/exe"}), HasSubstr("/proc/self/exe, which is no"));
  for (const char* name : {"./a", "a/", "b/../a"}) {
    EXPECT_THAT(error({"--swap", std::string("a,") + name}),
                AllOf(HasSubstr("a twice"), HasSubstr(name)));
  }
  EXPECT_THAT(error({"--set", "aio.block_size=131072"}), HasSubstr("262144"));
}

TEST(Finalize, gathers_the_folders_of_the_page_store_once) {
  Settings settings = parse({"--set", "zero_optimization.offload_optimizer.nvme_path=/a",
                             "zero_optimization.offload_param.nvme_path=/b,/a/",
                             "zero_optimization.offload_optimizer.device=nvme"})
                          .settings;
  finalize(settings);
  finalize(settings);
  EXPECT_THAT(settings.placement.swap, ElementsAre("/a", "/b"));
  Settings flag =
      parse({"--swap", "/c", "--set", "zero_optimization.offload_optimizer.nvme_path=/a"}).settings;
  finalize(flag);
  EXPECT_THAT(flag.placement.swap, ElementsAre("/c"));
}

TEST(Finalize, training_needs_model_data_and_output) {
  const auto error = [](const std::vector<std::string>& arguments) {
    Settings settings = parse(arguments).settings;
    return usage_error([&] { finalize_for_training(settings); });
  };
  EXPECT_THAT(error({}), HasSubstr("--model is missing"));
  EXPECT_THAT(error({"--model", "tiny"}), HasSubstr("--data is missing"));
  EXPECT_THAT(error({"--model", "tiny", "--data", "x"}), HasSubstr("--output is missing"));
}

TEST(EffectiveJson, is_read_back_to_the_same_settings) {
  const Settings settings = parse({"--model",
                                   "tiny",
                                   "--data",
                                   "a,b",
                                   "c",
                                   "--learning_rate",
                                   "3e-4",
                                   "--fp16",
                                   "--swap",
                                   "/x,/y",
                                   "--host_memory",
                                   "64G",
                                   "--disk",
                                   "80%",
                                   "--trace_steps",
                                   "3:8",
                                   "--lr_scheduler_type",
                                   "cosine",
                                   "--train_batch_size",
                                   "12",
                                   "--set",
                                   "optimizer.params.betas=0.8,0.95",
                                   "fp16.hysteresis=4"})
                                .settings;
  const std::string json = effective_json(settings);
  const Parsed again = parse_file(json);
  EXPECT_EQ(effective_json(again.settings), json);
  EXPECT_TRUE(again.notes.empty());
  EXPECT_THAT(again.settings.data.files, ElementsAre("a,b", "c"));
  EXPECT_EQ(again.settings.optimizer.learning_rate, 3e-4);
  EXPECT_EQ(again.settings.numerics.dtype, DType::f16);
  EXPECT_EQ(again.settings.placement.disk->percent, 80);
  EXPECT_EQ(again.settings.output.trace_steps.last, 8);
  EXPECT_EQ((*again.settings.optimizer.betas)[1], 0.95);
}

TEST(EffectiveJson, holds_every_default_under_its_key) {
  const std::string json = effective_json(Settings{});
  EXPECT_THAT(json, AllOf(HasSubstr("\"gradient_clipping\": 1.0"), HasSubstr("\"type\": \"AdamW\""),
                          HasSubstr("\"queue_depth\": 32")));
  EXPECT_EQ(effective_json(parse_file(json).settings), json);
}

}  // namespace
}  // namespace terrace::config
