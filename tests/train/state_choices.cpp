#include "train/state_choices.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <csignal>

#include "core/parsed_json.h"
#include "terrace/checkpoint/inspect.h"
#include "terrace/config/options.h"
#include "terrace/core/log.h"
#include "terrace/io/run_folder.h"
#include "terrace/train/export.h"
#include "terrace/train/inference.h"

namespace terrace::train::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAreArray;

constexpr std::int64_t kSteps = 6;
constexpr std::int64_t kSaved = 3;

std::vector<Row> after(const std::vector<Row>& all, std::int64_t step) {
  std::vector<Row> rest;
  std::ranges::copy_if(all, std::back_inserter(rest),
                       [&](const Row& row) { return row.step > step; });
  return rest;
}

fs::path checkpoint_of(const config::Settings& settings, std::int64_t step) {
  return fs::path(settings.output.folder) / ("checkpoint-" + std::to_string(step));
}

}  // namespace

std::vector<StateChoices> state_choices() {
  config::Settings settings;
  config::OptionTable table = config::settings_options(settings);
  std::vector<StateChoices> all;
  for (const config::OptionTable::Entry& entry : table.entries()) {
    const config::Option& option = entry.option;
    if (option.keys.empty() || option.field.choices.empty()) continue;
    const std::string& key = option.keys.front();
    if (!key.starts_with("optimizer.") && !key.starts_with("zero_optimization.offload_")) continue;
    StateChoices found{key, {}};
    for (const std::string& choice : option.field.choices) {
      option.field.set(choice, key);
      if (config::to_text(option.field.get()) == choice) found.choices.push_back(choice);
    }
    all.push_back(std::move(found));
  }
  return all;
}

StateChoices choices_of(std::string_view key) {
  for (StateChoices& option : state_choices()) {
    if (option.key == key) return option;
  }
  ADD_FAILURE() << "no option " << key << " has choices";
  return {};
}

std::vector<StateChoice> all_state_choices() {
  std::vector<StateChoice> product(1);
  for (const StateChoices& option : state_choices()) {
    std::vector<StateChoice> longer;
    for (const StateChoice& shorter : product) {
      for (const std::string& choice : option.choices) {
        longer.push_back(shorter);
        longer.back()[option.key] = choice;
      }
    }
    product = std::move(longer);
  }
  return product;
}

std::string describe(const StateChoice& choice) {
  std::string text;
  for (const auto& [key, value] : choice) text += key + " " + value + "  ";
  return text;
}

void choose(config::Settings& settings, std::string_view key, const std::string& value) {
  config::OptionTable table = config::settings_options(settings);
  table.with_key(key)->option.field.set(value, std::string(key));
}

config::Settings StateChoicesTest::with(const StateChoice& choice) const {
  config::Settings settings = this->settings("run");
  settings.length.max_steps = kSteps;
  settings.optimizer.weight_decay = 0;  // with Adam it would have to be said which
  settings.cadence.save_steps = kSaved;
  settings.cadence.save_total_limit = 0;
  for (const auto& [key, value] : choice) choose(settings, key, value);
  return settings;
}

bool StateChoicesTest::works_to_the_end(const config::Settings& settings) {
  const Result whole = train_run(settings);
  if (whole.code == 2) {
    EXPECT_THAT(whole.error, ::testing::Not(::testing::HasSubstr("internal")));
    EXPECT_FALSE(fs::exists(settings.output.folder)) << "it was not refused at the start";
    return false;
  }
  EXPECT_EQ(whole.code, 0) << whole.error;
  if (whole.code != 0) return false;
  const std::vector<Row> reference = rows(settings.output.folder);
  EXPECT_EQ(reference.size(), static_cast<std::size_t>(kSteps));
  goes_on_from_a_checkpoint(settings, reference);
  goes_on_after_a_signal(settings, reference);
  is_inspected_and_exported(settings);
  for (const char* name : {"run", "resumed", "stopped"}) fs::remove_all(folder_ / name);
  EXPECT_TRUE(fs::is_empty(folder_ / "swap"));
  return true;
}

void StateChoicesTest::goes_on_from_a_checkpoint(const config::Settings& settings,
                                                 const std::vector<Row>& reference) {
  config::Settings resumed = settings;
  resumed.output.folder = folder_ / "resumed";
  resumed.output.resume = checkpoint_of(settings, kSaved);
  EXPECT_THAT(run(resumed), ElementsAreArray(after(reference, kSaved)));
  const fs::path model = "model.safetensors";
  EXPECT_TRUE(read(folder_ / "resumed" / model) == read(settings.output.folder / model));
}

void StateChoicesTest::goes_on_after_a_signal(const config::Settings& settings,
                                              const std::vector<Row>& reference) {
  config::Settings stopped = settings;
  stopped.output.folder = folder_ / "stopped";
  const Result first = train_run(stopped, [](const std::string& line, auto& signal) {
    if (line.starts_with("saved ")) signal = SIGTERM;
  });
  EXPECT_EQ(first.code, 143) << first.error;
  for (const io::RunRecord& store : io::list_run_folders(folder_ / "swap")) {
    EXPECT_THAT(checkpoint::inspect(store.path).text, ::testing::HasSubstr("page store"));
  }
  stopped.output.resume = "auto";
  const Result second = train_run(stopped);
  EXPECT_EQ(second.code, 0) << second.error;
  EXPECT_THAT(rows(stopped.output.folder), ElementsAreArray(reference));
  from_stores_ += second.says("from the committed store") ? 1 : 0;
}

void StateChoicesTest::is_inspected_and_exported(const config::Settings& settings) {
  Unattended alone;
  const fs::path saved = checkpoint_of(settings, kSteps);
  const auto found =
      terrace::testing::parse_json(checkpoint::inspect(saved, {.verify = true}).json);
  EXPECT_EQ(found.at("kind"), "checkpoint");
  EXPECT_EQ(found.at("training").at("optimizer_state").at("optimizer.type"),
            std::string(optim::name_of(settings.optimizer.type)));
  double exact = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const fs::path folder = folder_ / "exported";
    (void)export_model({saved, folder, dtype}, alone.watch, alone.log);
    EXPECT_THAT(checkpoint::inspect(folder).text, ::testing::HasSubstr("model folder"));
    config::Settings evaluated = this->settings("");
    evaluated.model = folder;
    evaluated.data.files = {folder_ / "two.txt"};
    const double loss = evaluate_model(evaluated, alone.watch, alone.log).loss;
    // A weight keeps 8 bits at the least, and a loss is of the size of a few weights.
    if (dtype == DType::f32) exact = loss;
    EXPECT_NEAR(loss, exact, 0.05 * exact) << name_of(dtype);
    fs::remove_all(folder);
  }
}

}  // namespace terrace::train::testing
