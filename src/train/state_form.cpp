#include "state_form.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "terrace/config/options.h"
#include "terrace/core/error.h"
#include "terrace/optim/state_format.h"

namespace terrace::train {
namespace {

using Form = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kType = "optimizer.type";
constexpr const char* kMoments = "optimizer.moments";
constexpr const char* kDtype = "dtype";

/// Empty where it is not said.
std::string value_of(const Form& form, std::string_view key) {
  const auto found = std::ranges::find(form, key, &Form::value_type::first);
  return found == form.end() ? "" : found->second;
}

/// "AdamW, which keeps exp_avg and exp_avg_sq".
std::string described(optim::OptimizerType type) {
  std::vector<std::string_view> moments;
  for (const StateKind kind : optim::moments_of(type)) moments.push_back(terrace::name_of(kind));
  return fmt::format("{}, which keeps {}", optim::name_of(type), fmt::join(moments, " and "));
}

void require_same_moments(const ResumePoint& from, const std::string& before,
                          optim::OptimizerType now, Log& log) {
  const auto type = optim::optimizer_type_named(before);
  if (!type || *type == now) return;
  require(optim::share_moments(*type, now), ErrorKind::usage,
          "the state in {} is that of {}, but --optim is {}: give --optim {} to go on{}",
          from.place(), described(*type), described(now), before,
          from.checkpoint
              ? fmt::format(", or begin a new run with its weights alone (--model {} and "
                            "another --output)",
                            from.place())
              : ", or begin a new run");
  log.info("{} takes over the moments of {}: both keep the same ones", optim::name_of(now), before);
}

void require_same_form(const ResumePoint& from, const Form& before, const Form& now) {
  for (const auto& [key, value] : now) {
    const std::string found = value_of(before, key);
    if (key == kType || found.empty() || found == value) continue;
    // Parameters that are not in the store are made from the masters, in any type.
    if (key == kDtype && from.store->parameter_bytes() == 0) continue;
    fail(ErrorKind::usage,
         "the store in {} keeps its state with {} {}, but {} is {} now: resume with {}, or name a "
         "checkpoint with --resume, which may change it",
         from.place(), key, found, key, value, found);
  }
}

}  // namespace

Form state_form(const config::Settings& settings, DType parameter) {
  config::Settings copy = settings;
  const config::OptionTable table = config::settings_options(copy);
  Form form;
  // Each choice about the optimizer is one about its state; what are numbers is not.
  for (const config::OptionTable::Entry& entry : table.entries()) {
    const config::Option& option = entry.option;
    if (option.keys.empty() || option.field.choices.empty()) continue;
    if (!option.keys.front().starts_with("optimizer.")) continue;
    form.emplace_back(option.keys.front(), config::to_text(option.field.get()));
  }
  form.emplace_back(kDtype, std::string(terrace::name_of(parameter)));
  return form;
}

void require_state_can_follow(const ResumePoint& from, const config::Settings& settings,
                              DType parameter, Log& log) {
  if (from.starts_afresh()) return;
  const Form& before = from.state.state_form;
  const Form now = state_form(settings, parameter);
  std::string type = value_of(before, kType);
  if (type.empty()) type = value_of(from.state.numerics, "optimizer");  // as it was said once
  require_same_moments(from, type, settings.optimizer.type, log);
  if (from.store) return require_same_form(from, before, now);
  const std::string moments = value_of(before, kMoments);
  if (moments.empty() || moments == value_of(now, kMoments)) return;
  if (settings.optimizer.state.moments == DType::bf16) {
    log.warning("the moments in {} are {} and are rounded to bf16, as optimizer.moments says",
                from.place(), moments);
  } else {
    log.info("the moments in {} are {} and go on as {}, with no rounding", from.place(), moments,
             value_of(now, kMoments));
  }
}

}  // namespace terrace::train
