#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "config_file.h"
#include "terrace/config/options.h"
#include "terrace/core/error.h"

namespace terrace::config {
namespace {

// DeepSpeed 0.19: runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py,
// runtime/activation_checkpointing/config.py, runtime/lr_schedules.py,
// ops/adam/cpu_adam.py.

struct KeyDefault {
  std::string key;
  OptionValue value;
  bool wins = false;  ///< over another key of the same option
};

bool names_section(const FileKeys& keys, std::string_view section) {
  return std::ranges::any_of(keys.written,
                             [&](const auto& key) { return key.first.starts_with(section); });
}

std::string value_in(OptionTable& table, std::string_view key) {
  return to_text(table.with_key(key)->option.field.get());
}

/// Each type has its own.
void add_optimizer(OptionTable& table, const FileKeys& keys, std::vector<KeyDefault>& defaults) {
  const std::string type = value_in(table, "optimizer.type");
  const auto torch_adam = keys.written.find("optimizer.params.torch_adam");
  const bool is_torchs = torch_adam != keys.written.end() && torch_adam->second == "true";
  defaults.push_back({"optimizer.params.lr", type == "Adagrad" ? 1e-2 : 1e-3});
  defaults.push_back({"optimizer.params.weight_decay", is_torchs && type == "AdamW" ? 1e-2 : 0.0});
  if (type == "Adam") defaults.push_back({"optimizer.params.adam_w_mode", true});
  if (type == "Lion") {
    defaults.push_back({"optimizer.params.betas", std::vector<double>{0.9, 0.999}});
  }
}

void add_scheduler(OptionTable& table, std::vector<KeyDefault>& defaults) {
  defaults.push_back({"scheduler.params.warmup_type", std::string("log")});
  defaults.push_back({"scheduler.params.warmup_num_steps", std::int64_t{1000}});
  const std::string type = value_in(table, "scheduler.type");
  if (type == "WarmupCosineLR") defaults.push_back({"scheduler.min_lr_ratio", 1e-4});
  if (type == "WarmupDecayLR") defaults.push_back({"scheduler.params.warmup_max_lr", 1e-3, true});
}

std::vector<KeyDefault> defaults_for(OptionTable& table, const FileKeys& keys) {
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
  if (names_section(keys, "optimizer.")) add_optimizer(table, keys, defaults);
  if (names_section(keys, "scheduler.")) add_scheduler(table, defaults);
  return defaults;
}

/// Without a type DeepSpeed builds none and looks at no parameter, which nobody means.
void require_types(const FileKeys& keys, const std::string& path) {
  for (const std::string section : {"optimizer", "scheduler"}) {
    require(!names_section(keys, section + ".") || keys.contains(section + ".type"),
            ErrorKind::usage, "{}: {} has no type: add {}.type, or leave the section out", path,
            section, section);
  }
}

}  // namespace

void read_deepspeed(OptionTable& table, const std::string& path) {
  const FileKeys keys = read_keys(table, path);
  require_types(keys, path);
  std::vector<std::string> taken;
  for (const KeyDefault& standard : defaults_for(table, keys)) {
    auto* entry = table.with_key(standard.key);
    require(entry != nullptr, ErrorKind::internal, "no option has the key {}", standard.key);
    // "auto" leaves it to the flags; so does a key that another name has set.
    const bool is_set = entry->source != Source::standard && !standard.wins;
    if (keys.contains(standard.key) || is_set) continue;
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

}  // namespace terrace::config
