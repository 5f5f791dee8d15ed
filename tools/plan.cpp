#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>

#include "subcommand.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/config/planning.h"
#include "terrace/config/profile.h"
#include "terrace/core/error.h"
#include "terrace/core/json.h"
#include "terrace/core/units.h"
#include "terrace/plan/need.h"
#include "terrace/plan/simulate.h"
#include "terrace/runtime/step.h"
#include "terrace/train/run_setup.h"

namespace terrace::tools {
namespace {

/// The lanes that move bytes.
constexpr std::array kPaths = {plan::Lane::h2d, plan::Lane::d2h, plan::Lane::collective,
                               plan::Lane::disk_read, plan::Lane::disk_write};

/// A plan and all that is said with it.
struct PlanReport {
  const config::Settings& settings;
  const train::RunSetup& setup;
  const config::ChosenPlan& chosen;
  std::string profile = {};  ///< the name of the one that the prediction is made with
  std::optional<plan::Prediction> prediction = std::nullopt;
  std::uint64_t rated_writes = 0;  ///< of the drives together, in their life; 0: not known

  /// A step's, of all ranks.
  [[nodiscard]] std::int64_t tokens() const {
    return settings.batch.train.value_or(0) * sequence();
  }
  /// Tokens a step from which on computing takes as long as `lane` is busy, if it grows with them:
  /// a larger micro-batch moves no more bytes but for boundaries. None where those grow as fast.
  [[nodiscard]] std::optional<std::int64_t> hidden_from_tokens(plan::Lane lane) const {
    const double busy = prediction->of(lane).busy_seconds;
    const double growing = busy * plan::boundary_share(chosen.plan, lane);
    const double compute = prediction->of(plan::Lane::compute).busy_seconds;
    if (growing >= compute) return std::nullopt;
    return std::llround(
        std::ceil((busy - growing) / (compute - growing) * static_cast<double>(tokens())));
  }
  [[nodiscard]] double tokens_per_second() const {
    return static_cast<double>(tokens()) / prediction->step_seconds;
  }

 private:
  [[nodiscard]] std::int64_t sequence() const { return chosen.plan.request.micro_batch.sequence; }
};

constexpr std::array kStateKinds = {StateKind::parameter, StateKind::gradient, StateKind::master,
                                    StateKind::exp_avg, StateKind::exp_avg_sq};

/// What each rank keeps of each kind, and their sum, on all tiers together.
Json state_json(const plan::Plan& plan) {
  Json state = Json::object();
  std::uint64_t sum = 0;
  for (const StateKind kind : kStateKinds) {
    const std::uint64_t bytes = plan.kept_bytes(kind);
    state[std::string(name_of(kind))] = bytes;
    sum += bytes;
  }
  state["sum"] = sum;
  return state;
}

std::string state_table(const plan::Plan& plan) {
  std::vector<std::vector<std::string>> rows;
  const Json state = state_json(plan);
  for (const auto& [kind, bytes] : state.items()) {
    rows.push_back({"  " + kind, format_bytes(bytes.get<std::uint64_t>())});
  }
  constexpr std::array<std::size_t, 1> right = {1};
  return "\nState of each rank\n" + train::aligned(rows, right);
}

/// Free space that a run needs: of the page store's drives, and of the output folder's.
struct Space {
  std::uint64_t store = 0;
  std::uint64_t checkpoint = 0;  ///< one
  std::int64_t checkpoints = 0;  ///< that stand at once at most; 0: any number
  std::uint64_t model = 0;       ///< the final one
};

Space space_of(const PlanReport& report) {
  const config::CadenceSettings& cadence = report.settings.cadence;
  Space space;
  space.store = report.chosen.store_bytes;
  space.model = static_cast<std::uint64_t>(report.setup.model->parameter_count()) *
                size_of(report.setup.dtype);
  if (cadence.save_steps == 0) return space;
  checkpoint::CheckpointContents contents;
  contents.model = report.setup.source.description(report.setup.dtype);
  contents.tensors = train::tensor_shapes(*report.setup.model);
  contents.moments = optim::moments_of(report.settings.optimizer.type);
  space.checkpoint = checkpoint::checkpoint_bytes(contents);
  // An old one goes only when the new one is whole.
  if (cadence.save_total_limit > 0) space.checkpoints = cadence.save_total_limit + 1;
  return space;
}

std::string space_table(const PlanReport& report) {
  const Space space = space_of(report);
  std::vector<std::vector<std::string>> rows;
  if (space.store > 0) rows.push_back({"  page store", format_bytes(space.store)});
  if (space.checkpoint > 0) {
    rows.push_back(
        {fmt::format(
             "  a checkpoint{}",
             space.checkpoints > 0 ? fmt::format(", at most {} at once", space.checkpoints) : ""),
         format_bytes(space.checkpoint)});
  }
  rows.push_back({"  final model", format_bytes(space.model)});
  constexpr std::array<std::size_t, 1> right = {1};
  return "\nFree space needed\n" + train::aligned(rows, right);
}

/// Of what the drives are rated for, in per cent.
double rated_share(const PlanReport& report, std::uint64_t written) {
  return static_cast<double>(written) / static_cast<double>(report.rated_writes) * 100;
}

std::string movement_table(const PlanReport& report) {
  const plan::Plan& plan = report.chosen.plan;
  std::vector<std::vector<std::string>> rows;
  for (const plan::Lane lane : kPaths) {
    const std::uint64_t bytes = plan::bytes_per_step(plan, lane);
    if (bytes > 0) rows.push_back({fmt::format("  {}", name_of(lane)), format_bytes(bytes)});
  }
  if (const auto written = 1000 * plan::bytes_per_step(plan, plan::Lane::disk_write)) {
    rows.push_back({"  written in 1,000 steps", format_bytes(written)});
    if (report.rated_writes > 0) {
      rows.push_back({"  of what the drives are rated for",
                      fmt::format("{:.3g} %", rated_share(report, written))});
    }
  }
  constexpr std::array<std::size_t, 1> right = {1};
  return rows.empty() ? "" : "\nMoved in a step\n" + train::aligned(rows, right);
}

Json prediction_json(const PlanReport& report) {
  if (!report.prediction) return nullptr;
  Json busy = Json::object();
  Json waited = Json::object();
  Json hidden = Json::object();
  for (const plan::Lane lane : plan::kAllLanes) {
    busy[std::string(name_of(lane))] = report.prediction->of(lane).busy_seconds;
    if (lane != plan::Lane::compute) {
      const auto tokens = report.hidden_from_tokens(lane);
      hidden[std::string(name_of(lane))] = tokens ? Json(*tokens) : Json(nullptr);
    }
    waited[std::string(name_of(lane))] = report.prediction->waited_seconds[lane];
  }
  return {{"profile", report.profile},
          {"step_seconds", report.prediction->step_seconds},
          {"tokens_per_second", report.tokens_per_second()},
          {"busiest", name_of(report.prediction->busiest())},
          {"busy_seconds", busy},
          {"compute_waits_seconds", waited},
          {"hidden_from_tokens", hidden}};
}

std::string hidden_from(const PlanReport& report, plan::Lane lane) {
  const auto tokens = report.hidden_from_tokens(lane);
  return tokens ? fmt::format("{} tokens", format_count(static_cast<std::uint64_t>(*tokens)))
                : "no number of tokens";
}

std::string prediction_table(const PlanReport& report) {
  if (!report.prediction) {
    return fmt::format(
        "\nTime unknown: give --profile FILE, which terrace bench all --profile FILE writes on the "
        "machine meant, or a name of assumed figures ({})\n",
        config::known_profiles());
  }
  const plan::Prediction& prediction = *report.prediction;
  const auto share = [&](double seconds) {
    return fmt::format("{:.0f} %", seconds / prediction.step_seconds * 100);
  };
  std::vector<std::vector<std::string>> rows = {
      {"  lane", "busy", "of the step", "kept compute", "hidden from"}};
  for (const plan::Lane lane : plan::kAllLanes) {
    const double busy = prediction.of(lane).busy_seconds;
    if (busy == 0) continue;
    const double waited = prediction.waited_seconds[lane];
    rows.push_back({fmt::format("  {}", name_of(lane)), format_duration(busy), share(busy),
                    waited > 0 ? format_duration(waited) : "",
                    lane == plan::Lane::compute ? "" : hidden_from(report, lane)});
  }
  constexpr std::array<std::size_t, 4> right = {1, 2, 3, 4};
  return fmt::format("\nPredicted step: {}, {} tokens/s, bound by {}\n  profile: {}\n{}",
                     format_duration(prediction.step_seconds),
                     format_count(static_cast<std::uint64_t>(report.tokens_per_second())),
                     name_of(prediction.busiest()), report.profile, train::aligned(rows, right));
}

std::string as_json(const PlanReport& report) {
  const train::RunSetup& setup = report.setup;
  const config::ChosenPlan& chosen = report.chosen;
  Json tiers = Json::object();
  const memory::MemoryPlan& memory = chosen.plan.memory;
  for (const auto tier : {memory::Tier::device, memory::Tier::host, memory::Tier::disk}) {
    Json purposes = Json::object();
    for (const memory::PurposeBytes& row : memory.by_purpose()) {
      if (row.tier == tier && row.bytes > 0) {
        purposes[row.purpose] = chosen.plan.reserved_bytes(row);
      }
    }
    tiers[std::string(name_of(tier))] = {{"bytes", chosen.plan.reserved_bytes(tier)},
                                         {"purposes", purposes}};
  }
  Json process = Json::object();
  std::uint64_t process_bytes = 0;
  for (const plan::ProcessBytes& row : plan::process_rows(chosen.plan)) {
    process[row.purpose] = row.bytes;
    process_bytes += row.bytes;
  }
  tiers["process"] = {{"bytes", process_bytes}, {"purposes", process}};
  Json moved = Json::object();
  for (const plan::Lane lane : kPaths) {
    moved[std::string(name_of(lane))] = plan::bytes_per_step(chosen.plan, lane);
  }
  const Space space = space_of(report);
  const std::uint64_t written = 1000 * plan::bytes_per_step(chosen.plan, plan::Lane::disk_write);
  return json_text(
      {{"schema", "terrace.plan/1"},
       {"model", setup.source.name},
       {"parameters", setup.model->parameter_count()},
       {"dtype", name_of(setup.dtype)},
       {"placement", chosen.placement},
       {"ranks", setup.layout->world_size()},
       {"zero_stage", chosen.plan.request.zero_stage},
       {"state_bytes", state_json(chosen.plan)},
       {"tiers", tiers},
       {"bytes_per_step", moved},
       {"written_in_1000_steps", written},
       {"percent_of_rated_writes",
        report.rated_writes > 0 ? Json(rated_share(report, written)) : Json(nullptr)},
       {"free_space_bytes",
        {{"page_store", space.store},
         {"checkpoint", space.checkpoint},
         {"checkpoints_at_once", space.checkpoints > 0 ? Json(space.checkpoints) : Json(nullptr)},
         {"final_model", space.model}}},
       {"prediction", prediction_json(report)},
       {"process_bytes", chosen.process_bytes},
       {"budget_bytes", chosen.budget_bytes},
       {"budget_source", chosen.budget_source}});
}

std::string as_text(const PlanReport& report) {
  const train::RunSetup& setup = report.setup;
  const config::ChosenPlan& chosen = report.chosen;
  const model::BatchShape batch = chosen.plan.request.micro_batch;
  std::vector<config::Fact> facts = {
      {"model",
       fmt::format("{}, {} parameters, {}", setup.source.name,
                   format_count(static_cast<std::uint64_t>(setup.model->parameter_count())),
                   name_of(setup.dtype))},
      {"micro-batch",
       fmt::format("{} of {} tokens", counted(batch.rows, "sequence"), batch.sequence)},
      {"placement", chosen.placement},
      {"RAM", fmt::format("{} of {} ({})", format_bytes(chosen.process_bytes),
                          format_bytes(chosen.budget_bytes), chosen.budget_source)}};
  const int ranks = setup.layout->world_size();
  if (ranks > 1) {
    facts.push_back({"ranks", fmt::format("{}, ZeRO stage {}; what follows is of each", ranks,
                                          chosen.plan.request.zero_stage)});
  }
  for (const config::Fact& fact : config::facts_of(report.settings)) facts.push_back(fact);
  return fmt::format("{}{}\nMemory (loading and saving take no more)\n{}{}{}{}",
                     train::settings_table(facts), ranks > 1 ? state_table(chosen.plan) : "",
                     config::memory_table(chosen.plan), space_table(report), movement_table(report),
                     prediction_table(report));
}

/// Says that it goes on where it takes long; a signal ends the program at once.
config::ChosenPlan choose(Context& context, const config::Settings& settings,
                          const train::RunSetup& setup, const config::PlanBasis& basis) {
  const std::atomic<int> no_signal{0};
  train::Watch watch(no_signal, context.terminal, context.log);
  const train::Activity choosing(watch, "choosing a placement", {.to_the_end = true});
  return config::choose_plan(settings, *setup.model, *setup.layout, basis);
}

}  // namespace

int run_plan(Context& context, const Arguments& arguments) {
  config::Settings settings;
  bool json = false;
  config::OptionTable table = config::settings_options(settings);
  std::uint64_t rated_writes = 0;
  table.group("Result");
  table.add({.flags = {"json"},
             .field = config::field(json),
             .help = "write the plan as one JSON object"});
  table.add({.flags = {"rated_writes"},
             .field = config::size_field(rated_writes),
             .help = "what the drives of --swap together are rated to be written in their life, as "
                     "1400TB",
             .unit = "bytes",
             .default_note = "not known"});
  if (!parse(context, table, "terrace plan --model DIR|PRESET [OPTION ...]", arguments)) return 0;
  config::finalize(settings);
  require(rated_writes > 0 || !table.given("rated_writes"), ErrorKind::usage,
          "--rated_writes is 0, but drives are rated to be written more: give their rating, as "
          "1400TB, or leave it out");
  require(!settings.model.empty(), ErrorKind::usage,
          "--model is missing: give a model folder or the name of a preset");
  std::optional<plan::HardwareProfile> profile;
  if (const std::string& source = settings.placement.profile; !source.empty()) {
    profile = config::find_profile(source);
  }
  config::resolve_batch(settings.batch, settings.ranks.ranks);
  const train::RunSetup setup = train::set_up(settings, context.log, train::SetupUse::plan);
  settings.numerics.dtype = setup.dtype;
  if (!settings.optimizer.learning_rate) {
    settings.optimizer.learning_rate = setup.source.learning_rate;
  }
  config::PlanBasis basis;
  basis.threads = setup.machine.threads.threads;
  if (profile && profile->device_memory_bytes) {
    basis.device_is_ram = false;
    const auto own = static_cast<std::uint64_t>(*profile->device_memory_bytes);
    std::optional<config::Budget>& budget = settings.placement.device_memory;
    if (!budget) basis.device_budget_source = "--device_memory (by default 90 % of the profile's)";
    budget = config::Budget{budget.value_or(config::Budget{.percent = 90}).of(own)};
  }
  const config::ChosenPlan chosen = choose(context, settings, setup, basis);
  PlanReport report{settings, setup, chosen};
  report.rated_writes = rated_writes;
  if (profile) {
    report.profile = profile->name;
    report.prediction =
        plan::simulate(chosen.plan.training, *profile,
                       {.compute = setup.dtype, .steps_in_flight = plan::kStepsInFlight});
  }
  print(json ? as_json(report) : as_text(report));
  return 0;
}

}  // namespace terrace::tools
