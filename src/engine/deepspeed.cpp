#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "config_file.h"
#include "terrace/core/error.h"
#include "terrace/engine/options.h"

namespace terrace::engine {
namespace {

// DeepSpeed 0.19: runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py,
// runtime/activation_checkpointing/config.py, runtime/lr_schedules.py,
// ops/adam/cpu_adam.py.

struct KeyDefault {
  std::string key;
  OptionValue value;
};

bool names_section(const std::set<std::string>& keys, std::string_view section) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return key.starts_with(section); });
}

std::vector<KeyDefault> defaults_for(OptionTable& table, const std::set<std::string>& keys) {
  std::vector<KeyDefault> defaults = {
      {"zero_optimization.stage", std::int64_t{0}},
      {"zero_optimization.offload_optimizer.device", std::string("none")},
      {"zero_optimization.offload_param.device", std::string("none")},
      {"gradient_clipping", 1.0},
  };
  if (!keys.contains("activation_checkpointing.cpu_checkpointing")) {
    defaults.push_back({"activation_checkpointing.device", std::string("none")});
  }
  const bool says_dtype = keys.contains("bf16.enabled") || keys.contains("fp16.enabled");
  if (!says_dtype) defaults.push_back({"dtype", std::string("fp32")});
  if (names_section(keys, "optimizer.")) {
    defaults.push_back({"optimizer.params.lr", 1e-3});
    defaults.push_back({"optimizer.params.weight_decay", 0.0});
    const OptionTable::Entry* type = table.with_key("optimizer.type");
    if (to_text(type->option.field.get()) == "Adam") {
      defaults.push_back({"optimizer.params.adam_w_mode", true});
    }
  }
  if (names_section(keys, "scheduler.")) {
    defaults.push_back({"scheduler.params.warmup_type", std::string("log")});
    defaults.push_back({"scheduler.params.warmup_num_steps", std::int64_t{1000}});
    const OptionTable::Entry* type = table.with_key("scheduler.type");
    if (to_text(type->option.field.get()) == "cosine") {
      defaults.push_back({"scheduler.min_lr_ratio", 1e-4});
    }
  }
  return defaults;
}

}  // namespace

void read_deepspeed(OptionTable& table, const std::string& path) {
  const std::set<std::string> keys = read_keys(table, path);
  std::vector<std::string> taken;
  for (const KeyDefault& standard : defaults_for(table, keys)) {
    auto* entry = table.with_key(standard.key);
    require(entry != nullptr, ErrorKind::internal, "no option has the key {}", standard.key);
    // "auto" leaves it to the flags; so does a key that another name has set.
    if (keys.contains(standard.key) || entry->source != Source::standard) continue;
    entry->option.field.set(standard.value, path);
    taken.push_back(fmt::format("{} = {}", standard.key, to_text(standard.value)));
  }
  if (!taken.empty()) {
    table.note(
        fmt::format("{}: absent keys take DeepSpeed's defaults: {}", path, fmt::join(taken, ", ")));
  }
  for (const std::string_view section : {"optimizer", "scheduler"}) {
    if (names_section(keys, fmt::format("{}.", section))) continue;
    table.note(fmt::format("{}: has no {}: the flags and their defaults decide", path, section));
  }
}

}  // namespace terrace::engine
