#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "config/parse.h"
#include "core/parsed_json.h"
#include "foreign.h"
#include "resume_notes.h"

// What DeepSpeed's keys mean here, held to what DeepSpeed itself makes of them (deepspeed.json, see
// make_deepspeed.py).

namespace terrace::train {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const json& golden() {
  static const json all = terrace::testing::read_json(TERRACE_GOLDEN "/deepspeed.json");
  return all;
}

config::Settings read(const json& file) {
  const config::TextFile text(file.dump());
  config::Parsed parsed = config::parse({"--deepspeed", text.path()});
  config::finalize(parsed.settings);
  return parsed.settings;
}

/// "a.b.c" as a path into a file.
json::json_pointer path_of(std::string key) {
  std::replace(key.begin(), key.end(), '.', '/');
  return json::json_pointer("/" + key);
}

TEST(DeepSpeedGolden, each_update_has_its_learning_rate) {
  for (const json& each : golden()["schedules"]) {
    json file = {{"scheduler", {{"type", each["type"]}, {"params", each["params"]}}}};
    // Of two rates the scheduler's counts there; here they must agree.
    if (!each["params"].contains("warmup_max_lr")) {
      file["optimizer"] = {{"type", "AdamW"}, {"params", {{"lr", each["lr"]}}}};
    }
    const config::Settings settings = read(file);
    const auto updates = static_cast<std::int64_t>(each["rates"].size());
    const auto schedule = config::learning_rate_schedule(settings, updates);
    std::int64_t done = 0;
    for (const double expected : each["rates"]) {
      // A few roundings of factors that are at most 1.
      EXPECT_NEAR(schedule.rate(done), expected, 8 * 0x1p-53 * schedule.peak)
          << each["type"] << " " << each["params"] << ", update " << done;
      ++done;
    }
  }
}

TEST(DeepSpeedGolden, two_rates_that_differ_are_refused) {
  const json file = {{"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-4}}}}},
                     {"scheduler", {{"type", "WarmupLR"}, {"params", {{"warmup_max_lr", 1e-3}}}}}};
  EXPECT_THAT(config::usage_error([&] { read(file); }), HasSubstr("contradicts"));
}

TEST(DeepSpeedGolden, schedules_that_are_not_offered_and_parameters_of_another_one_are_refused) {
  auto error = [](const char* type, const json& params) {
    return config::usage_error([&] {
      read({{"scheduler", {{"type", type}, {"params", params}}}});
    });
  };
  EXPECT_THAT(error("OneCycle", json::object()), HasSubstr("not offered"));
  EXPECT_THAT(error("LRRangeTest", json::object()), HasSubstr("not offered"));
  EXPECT_THAT(error("WarmupCosineLR", {{"warmup_min_lr", 1e-5}}), HasSubstr("warmup_min_ratio"));
  EXPECT_THAT(error("WarmupDecayLR", {{"warmup_min_ratio", 0.1}}), HasSubstr("warmup_min_lr"));
  EXPECT_THAT(error("WarmupDecayLR", {{"cos_min_ratio", 0.1}}), HasSubstr("warmup_min_lr"));
  EXPECT_THAT(error("WarmupLR", {{"total_num_steps", 10}}), HasSubstr("does not decay"));
  EXPECT_THAT(error("WarmupLR", {{"last_batch_iteration", 3}}), HasSubstr("not supported"));
  EXPECT_THAT(config::usage_error([] {
                read({{"scheduler", {{"params", {{"warmup_num_steps", 3}}}}}});
              }),
              HasSubstr("has no type"));
}

TEST(DeepSpeedGolden, each_step_has_its_loss_scale) {
  for (const json& each : golden()["scalers"]) {
    const config::Settings settings = read({{"fp16", each["fp16"]}});
    optim::LossScaler scaler(settings.numerics.loss_scale);
    for (std::size_t step = 0; step < each["scales"].size(); ++step) {
      scaler.update(each["overflows"][step]);
      ASSERT_EQ(scaler.scale(), each["scales"][step].get<double>())
          << each["fp16"] << ", step " << step;
    }
  }
}

TEST(DeepSpeedGolden, each_optimizer_has_its_numbers) {
  for (const json& each : golden()["optimizers"]) {
    SCOPED_TRACE(each["type"]);
    const config::Settings settings =
        read({{"optimizer", {{"type", each["type"]}, {"params", each["params"]}}}});
    const optim::OptimizerOptions options = config::optimizer_options(settings.optimizer);
    const json& numbers = each["numbers"];
    EXPECT_EQ(settings.optimizer.learning_rate, numbers["lr"].get<double>());
    EXPECT_EQ(options.weight_decay, numbers["weight_decay"].get<double>());
    EXPECT_EQ(options.bias_correction, numbers.value("bias_correction", true));
    EXPECT_EQ(options.eps, numbers.value("eps", options.eps));
    if (!numbers.contains("betas")) continue;
    EXPECT_EQ(options.beta1, numbers["betas"][0].get<double>());
    EXPECT_EQ(options.beta2, numbers["betas"][1].get<double>());
  }
}

TEST(DeepSpeedGolden, batch_sizes_follow_from_each_other) {
  for (const json& each : golden()["batches"]) {
    SCOPED_TRACE(each);
    json file = json::object();
    for (const auto& [ours, theirs] : {std::pair("train", "train_batch_size"),
                                       std::pair("micro", "train_micro_batch_size_per_gpu"),
                                       std::pair("accumulation", "gradient_accumulation_steps")}) {
      if (!each[ours].is_null()) file[theirs] = each[ours];
    }
    config::BatchSettings batch = read(file).batch;
    // DeepSpeed refuses a file without a batch, which has a default here.
    if (each["train"].is_null() && each["micro"].is_null()) continue;
    auto resolve = [&] { config::resolve_batch(batch, each["world"]); };
    if (each["found"].is_null()) {
      EXPECT_THAT(config::usage_error(resolve), HasSubstr("train_batch_size"));
    } else {
      resolve();
      EXPECT_EQ(json({*batch.train, *batch.micro, *batch.accumulation}), each["found"]);
    }
  }
}

/// Names every section whose keys have no meaning without it.
json base_file() {
  return {{"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}, {"weight_decay", 0}}}}},
          {"scheduler", {{"type", "WarmupLR"}}},
          {"bf16", {{"enabled", false}}},
          {"fp16", {{"enabled", false}}}};
}

checkpoint::NamedValues numbers_of(const json& file) {
  config::Settings settings = read(file);
  config::resolve_batch(settings.batch, 1);
  return numerics_of(settings);
}

TEST(DeepSpeedGolden, its_defaults_written_out_change_no_number) {
  const auto expected = numbers_of(base_file());
  for (const auto& [key, value] : golden()["defaults"].items()) {
    SCOPED_TRACE(key);
    json file = base_file();
    file[path_of(key)] = value;
    EXPECT_EQ(numbers_of(file), expected);
  }
}

TEST(DeepSpeedGolden, what_is_ignored_changes_no_number) {
  const auto expected = numbers_of(base_file());
  for (const config::Foreign& foreign : config::deepspeed_keys()) {
    SCOPED_TRACE(foreign.name);
    for (const std::string& value :
         foreign.harmless.empty() ? std::vector<std::string>{"7"} : foreign.harmless) {
      json file = base_file();
      file[path_of(foreign.name)] =
          value == "{...}" ? json::object() : terrace::testing::parse_json(value);
      EXPECT_EQ(numbers_of(file), expected);
    }
  }
}

/// Keys that DeepSpeed does not know, so that no file of its users has them.
bool is_ours(const std::string& key) {
  static const std::set<std::string> ours = {"model",
                                             "data",
                                             "eval_data",
                                             "validation_fraction",
                                             "max_length",
                                             "output",
                                             "overwrite_output",
                                             "resume",
                                             "no_lock",
                                             "dry_run",
                                             "num_train_epochs",
                                             "max_steps",
                                             "micro_batch_order",
                                             "optimizer.decay_all",
                                             "optimizer.state_format",
                                             "optimizer.moments",
                                             "max_skipped_steps",
                                             "scheduler.warmup_ratio",
                                             "scheduler.min_lr_ratio",
                                             "dtype",
                                             "gradient_dtype",
                                             "gradient_checkpointing",
                                             "seed",
                                             "logging_steps",
                                             "eval_steps",
                                             "save_steps",
                                             "save_total_limit",
                                             "trace",
                                             "trace_steps",
                                             "device",
                                             "activation_checkpointing.device",
                                             "activation_checkpointing.ratio",
                                             "swap",
                                             "profile",
                                             "device_memory",
                                             "host_memory",
                                             "disk",
                                             "zero_optimization.offload_param.ratio",
                                             "prefetch_units",
                                             "disk_extents",
                                             "disk_phases",
                                             "ranks",
                                             "threads",
                                             "peer_timeout"};
  return ours.contains(key) || key.starts_with("pacing.");
}

TEST(DeepSpeedGolden, every_key_that_is_accepted_is_held_to_it) {
  std::set<std::string> held = {"train_batch_size",
                                "train_micro_batch_size_per_gpu",
                                "gradient_accumulation_steps",
                                "optimizer.type",
                                "scheduler.type",
                                "optimizer.params.adam_w_mode",
                                "optimizer.params.lr",
                                "steps_per_print"};  // it is a cadence
  for (const config::Foreign& foreign : config::deepspeed_keys()) held.insert(foreign.name);
  for (const auto& [key, value] : golden()["defaults"].items()) held.insert(key);
  for (const json& each : golden()["schedules"]) {
    for (const auto& [key, value] : each["params"].items()) held.insert("scheduler.params." + key);
  }
  for (const json& each : golden()["optimizers"]) {
    for (const auto& [key, value] : each["numbers"].items()) held.insert("optimizer.params." + key);
  }
  config::Settings settings;
  const config::OptionTable table = config::settings_options(settings);
  for (const config::OptionTable::Entry& entry : table.entries()) {
    for (const std::string& key : entry.option.keys) {
      EXPECT_TRUE(is_ours(key) || held.contains(key))
          << key << ": add what DeepSpeed makes of it to make_deepspeed.py, or say that it is ours";
    }
  }
}

}  // namespace
}  // namespace terrace::train
