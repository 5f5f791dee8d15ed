#include "resume_notes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "terrace/core/error.h"
#include "terrace/engine/options.h"

namespace terrace::engine {
namespace {

using checkpoint::NamedValues;

bool alters_losses(const Option& option) {
  return option.effect == Effect::losses || option.effect == Effect::losses_and_layout;
}

bool alters_layout(const Option& option) {
  return option.effect == Effect::layout || option.effect == Effect::losses_and_layout;
}

bool alters_layout_alone(const Option& option) { return option.effect == Effect::layout; }

NamedValues values_of(Settings settings, bool (*counts)(const Option&)) {
  NamedValues values;
  const OptionTable table = settings_options(settings);
  for (const OptionTable::Entry& entry : table.entries()) {
    const Option& option = entry.option;
    if (counts(option)) values.emplace_back(name_of(option), to_text(option.field.get()));
  }
  return values;
}

/// The settings of a run that was saved, as far as it has a record of them, and what has none.
struct Recorded {
  Settings settings;
  std::vector<std::string> missing;
};

/// `now` with the values of `before` in it.
Recorded recorded(const checkpoint::TrainerState& before, const Settings& now) {
  Recorded result{now, {}};
  const OptionTable table = settings_options(result.settings);
  for (const OptionTable::Entry& entry : table.entries()) {
    const Option& option = entry.option;
    if (!alters_losses(option) && !alters_layout(option)) continue;
    const std::string& name = name_of(option);
    const NamedValues& values = alters_layout_alone(option) ? before.layout : before.numerics;
    const auto found = std::ranges::find(values, name, &NamedValues::value_type::first);
    if (found == values.end()) {
      result.missing.push_back(name);
    } else if (found->second.empty()) {
      const OptionValue nothing = std::string();
      option.field.set(option.field.nullable ? OptionValue() : nothing, name);
    } else {
      option.field.set(parse_text(option.field, found->second, name), name);
    }
  }
  return result;
}

std::vector<std::string> differences(const Settings& before, const Settings& now,
                                     bool (*counts)(const Option&)) {
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
std::vector<std::string> note_of_rate(const checkpoint::TrainerState& before, const Settings& then,
                                      const Settings& now) {
  const auto was = learning_rate_schedule(then, then.length.max_steps);
  const auto is = learning_rate_schedule(now, now.length.max_steps);
  if (was == is) return {};
  const std::int64_t updates = before.adam_step;
  return {
      fmt::format("the learning rate goes on from {:.4g} at step {} to {:.4g} at step {}: the "
                  "schedule was {}; it is {}",
                  was.rate(std::max<std::int64_t>(0, updates - 1)), before.global_step,
                  is.rate(updates), before.global_step + 1, was.describe(), is.describe())};
}

}  // namespace

Settings written_out(Settings settings, const Resolution& resolution) {
  const optim::OptimizerOptions options = optimizer_options(settings.optimizer);
  settings.optimizer.learning_rate = resolution.learning_rate;
  settings.optimizer.betas = {options.beta1, options.beta2};
  settings.optimizer.epsilon = options.eps;
  NumericsSettings& numerics = settings.numerics;
  numerics.dtype = resolution.dtype;
  numerics.gradient_dtype = numerics.gradient_dtype.value_or(resolution.dtype);
  if (resolution.dtype != DType::f16) numerics.loss_scale = {};
  const bool decays = learning_rate_schedule(settings, resolution.total_steps).decays();
  if (decays && !settings.schedule.total_steps) {
    settings.schedule.total_steps = resolution.total_steps;
  }
  settings.length.max_steps = resolution.total_steps;
  settings.placement.device = DeviceChoice::cpu;  // the one that there is
  settings.ranks.threads = resolution.threads;
  return settings;
}

NamedValues numerics_of(const Settings& settings) { return values_of(settings, alters_losses); }

NamedValues layout_of(const Settings& settings) { return values_of(settings, alters_layout_alone); }

std::vector<std::string> resume_notes(const checkpoint::TrainerState& before,
                                      const Settings& settings) {
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
                                            const Settings& settings) {
  return differences(recorded(before, settings).settings, settings, alters_layout);
}

}  // namespace terrace::engine
