#include "resume_notes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "terrace/config/options.h"
#include "terrace/core/error.h"

namespace terrace::train {
namespace {

using checkpoint::NamedValues;

bool alters_losses(const config::Option& option) {
  return option.effect == config::Effect::losses ||
         option.effect == config::Effect::losses_and_layout;
}

bool alters_layout(const config::Option& option) {
  return option.effect == config::Effect::layout ||
         option.effect == config::Effect::losses_and_layout;
}

bool alters_layout_alone(const config::Option& option) {
  return option.effect == config::Effect::layout;
}

NamedValues values_of(config::Settings settings, bool (*counts)(const config::Option&)) {
  NamedValues values;
  const config::OptionTable table = config::settings_options(settings);
  for (const config::OptionTable::Entry& entry : table.entries()) {
    const config::Option& option = entry.option;
    if (counts(option)) values.emplace_back(name_of(option), config::to_text(option.field.get()));
  }
  return values;
}

/// The settings of a run that was saved, as far as it has a record of them, and what has none.
struct Recorded {
  config::Settings settings;
  std::vector<std::string> missing;
};

/// `now` with the values of `before` in it.
Recorded recorded(const checkpoint::TrainerState& before, const config::Settings& now) {
  Recorded result{now, {}};
  const config::OptionTable table = config::settings_options(result.settings);
  for (const config::OptionTable::Entry& entry : table.entries()) {
    const config::Option& option = entry.option;
    if (!alters_losses(option) && !alters_layout(option)) continue;
    const std::string& name = name_of(option);
    const NamedValues& values = alters_layout_alone(option) ? before.layout : before.numerics;
    const auto found = std::ranges::find(values, name, &NamedValues::value_type::first);
    if (found == values.end()) {
      result.missing.push_back(name);
    } else if (found->second.empty()) {
      const config::OptionValue nothing = std::string();
      option.field.set(option.field.nullable ? config::OptionValue() : nothing, name);
    } else {
      option.field.set(parse_text(option.field, found->second, name), name);
    }
  }
  return result;
}

std::vector<std::string> differences(const config::Settings& before, const config::Settings& now,
                                     bool (*counts)(const config::Option&)) {
  std::vector<std::string> lines;
  const NamedValues old_values = values_of(before, counts);
  const NamedValues new_values = values_of(now, counts);
  auto shown = [](const std::string& value) { return value.empty() ? "not set" : value; };
  for (std::size_t i = 0; i < new_values.size(); ++i) {
    const auto& [name, value] = new_values[i];
    if (value == old_values[i].second) continue;
    lines.push_back(
        fmt::format("{} was {} and is {}", name, shown(old_values[i].second), shown(value)));
  }
  return lines;
}

/// Where the rate goes; nothing where it goes on as it would have.
std::vector<std::string> note_of_rate(const checkpoint::TrainerState& before,
                                      const config::Settings& then, const config::Settings& now) {
  const auto was = config::learning_rate_schedule(then, then.length.max_steps);
  const auto is = config::learning_rate_schedule(now, now.length.max_steps);
  if (was == is) return {};
  const std::int64_t updates = before.adam_step;
  return {
      fmt::format("the learning rate goes on from {:.4g} at step {} to {:.4g} at step {}: the "
                  "schedule was {}; it is {}",
                  was.rate(std::max<std::int64_t>(0, updates - 1)), before.global_step,
                  is.rate(updates), before.global_step + 1, was.describe(), is.describe())};
}

}  // namespace

config::Settings written_out(config::Settings settings, const Resolution& resolution) {
  const optim::OptimizerOptions options = config::optimizer_options(settings.optimizer);
  settings.optimizer.learning_rate = resolution.learning_rate;
  settings.optimizer.betas = {options.beta1, options.beta2};
  settings.optimizer.epsilon = options.eps;
  config::NumericsSettings& numerics = settings.numerics;
  numerics.dtype = resolution.dtype;
  numerics.gradient_dtype = numerics.gradient_dtype.value_or(resolution.dtype);
  if (resolution.dtype != DType::f16) numerics.loss_scale = {};
  const bool decays = config::learning_rate_schedule(settings, resolution.total_steps).decays();
  if (decays && !settings.schedule.total_steps) {
    settings.schedule.total_steps = resolution.total_steps;
  }
  settings.length.max_steps = resolution.total_steps;
  settings.placement.device = config::DeviceChoice::cpu;  // the one that there is
  settings.ranks.threads = resolution.threads;
  return settings;
}

NamedValues numerics_of(const config::Settings& settings) {
  return values_of(settings, alters_losses);
}

NamedValues layout_of(const config::Settings& settings) {
  return values_of(settings, alters_layout_alone);
}

std::vector<std::string> resume_notes(const checkpoint::TrainerState& before,
                                      const config::Settings& settings) {
  const Recorded then = recorded(before, settings);
  std::vector<std::string> lines = differences(then.settings, settings, alters_losses);
  for (std::string& line : note_of_rate(before, then.settings, settings)) {
    lines.push_back(std::move(line));
  }
  if (!then.missing.empty()) {
    lines.push_back(fmt::format("an earlier version saved it without {}, which may have changed",
                                fmt::join(then.missing, ", ")));
  }
  return lines;
}

std::vector<std::string> layout_differences(const checkpoint::TrainerState& before,
                                            const config::Settings& settings) {
  return differences(recorded(before, settings).settings, settings, alters_layout);
}

}  // namespace terrace::train
