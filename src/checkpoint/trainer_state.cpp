#include "terrace/checkpoint/trainer_state.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "hex.h"
#include "pairs.h"
#include "terrace/core/json.h"

namespace terrace::checkpoint {
namespace {

/// The Trainer's field for what its parts keep: the one place where its reader takes any key.
constexpr const char* kForParts = "stateful_callbacks";
constexpr const char* kOurs = "terrace";

Pairs to_pairs(const Json& json) {
  Pairs pairs;
  for (const auto& [name, value] : json.items()) pairs.emplace_back(name, value.get<std::string>());
  return pairs;
}

/// JSON has no infinity and no NaN; null stands for them.
Json to_number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

double from_number(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

Json history_to_json(const std::vector<LogRecord>& history) {
  Json list = Json::array();
  for (const LogRecord& record : history) {
    Json entry = {{"epoch", record.epoch}};
    for (const auto& [name, value] : record.values) entry[name] = to_number(value);
    entry["step"] = record.step;
    list.push_back(std::move(entry));
  }
  return list;
}

std::vector<LogRecord> history_from_json(const Json& list) {
  std::vector<LogRecord> history;
  for (const Json& entry : list) {
    LogRecord& record = history.emplace_back();
    for (const auto& [name, value] : entry.items()) {
      if (name == "step") {
        record.step = value.get<std::int64_t>();
      } else if (name == "epoch") {
        record.epoch = value.get<double>();
      } else {
        record.values.emplace_back(name, from_number(value));
      }
    }
  }
  return history;
}

Json identity_to_json(const RunIdentity& identity) {
  Json tokenizer = Json::array();
  for (const NamedFingerprint& file : identity.tokenizer) {
    tokenizer.push_back({{"name", file.name},
                         {"bytes", file.contents.bytes},
                         {"crc64", to_hex(file.contents.crc64)}});
  }
  return {{"model", to_hex(identity.model)},
          {"seed", identity.seed},
          {"tokenizer", std::move(tokenizer)},
          {"data", json_from(data::to_json(identity.data)).value()}};
}

RunIdentity identity_from_json(const Json& json, std::string_view where) {
  RunIdentity identity;
  identity.model = from_hex(json.at("model").get<std::string>());
  identity.seed = json.at("seed").get<std::uint64_t>();
  for (const Json& file : json.at("tokenizer")) {
    identity.tokenizer.push_back(
        {file.at("name").get<std::string>(),
         {file.at("bytes").get<std::uint64_t>(), from_hex(file.at("crc64").get<std::string>())}});
  }
  identity.data = data::parse_dataset_fingerprint(json_line(json.at("data")), where);
  return identity;
}

Json rows_to_json(const std::vector<StepRow>& rows) {
  Json list = Json::array();
  for (const StepRow& row : rows) {
    Json entry = {{"step", row.step},
                  {"epoch", row.epoch},
                  {"loss", to_number(row.loss)},
                  {"grad_norm", to_number(row.grad_norm)},
                  {"learning_rate", row.learning_rate},
                  {"tokens", row.tokens},
                  {"skipped", row.skipped},
                  {"nonfinite", row.nonfinite}};
    if (row.eval_loss) entry["eval_loss"] = to_number(*row.eval_loss);
    list.push_back(std::move(entry));
  }
  return list;
}

std::vector<StepRow> rows_from_json(const Json& list) {
  std::vector<StepRow> rows;
  for (const Json& entry : list) {
    StepRow& row = rows.emplace_back();
    row.step = entry.at("step").get<std::int64_t>();
    row.epoch = entry.at("epoch").get<double>();
    row.loss = from_number(entry.at("loss"));
    row.grad_norm = from_number(entry.at("grad_norm"));
    row.learning_rate = entry.at("learning_rate").get<double>();
    row.tokens = entry.at("tokens").get<std::int64_t>();
    row.skipped = entry.at("skipped").get<std::int64_t>();
    row.nonfinite = entry.at("nonfinite").get<std::string>();
    if (entry.contains("eval_loss")) row.eval_loss = from_number(entry.at("eval_loss"));
  }
  return rows;
}

Json ours_to_json(const TrainerState& state) {
  Json json = {{"run_id", state.run.text()},
               {"adam_step", state.adam_step},
               {"skipped_steps", state.skipped_steps},
               {"skipped_in_a_row", state.skipped_in_a_row},
               {"loader",
                {{"samples", state.loader.samples},
                 {"sequences", state.loader.sequences},
                 {"length", state.loader.length},
                 {"seed", state.loader.seed}}},
               {"loss_scale",
                {{"scale", state.loss_scale.scale},
                 {"good_steps", state.loss_scale.good_steps},
                 {"hysteresis_left", state.loss_scale.hysteresis_left}}},
               {"identity", identity_to_json(state.identity)},
               {"versions", to_object(state.versions)},
               {"numerics", to_object(state.numerics)},
               {"layout", to_object(state.layout)},
               {"state_form", to_object(state.state_form)}};
  if (!state.rows.empty()) json["rows"] = rows_to_json(state.rows);
  return json;
}

void ours_from_json(const Json& json, std::string_view where, TrainerState& state) {
  if (json.contains("run_id")) state.run = io::RunId::parse(json.at("run_id").get<std::string>());
  state.adam_step = json.at("adam_step").get<std::int64_t>();
  state.skipped_steps = json.at("skipped_steps").get<std::int64_t>();
  state.skipped_in_a_row = json.at("skipped_in_a_row").get<std::int64_t>();
  const Json& loader = json.at("loader");
  state.loader = {loader.at("samples").get<std::int64_t>(),
                  loader.at("sequences").get<std::int64_t>(),
                  loader.at("length").get<std::int64_t>(), loader.at("seed").get<std::uint64_t>()};
  const Json& scale = json.at("loss_scale");
  state.loss_scale = {scale.at("scale").get<double>(), scale.at("good_steps").get<std::int64_t>(),
                      scale.at("hysteresis_left").get<std::int64_t>()};
  state.identity = identity_from_json(json.at("identity"), where);
  state.versions = to_pairs(json.at("versions"));
  state.numerics = to_pairs(json.at("numerics"));
  if (json.contains("rows")) state.rows = rows_from_json(json.at("rows"));
  if (json.contains("state_form")) state.state_form = to_pairs(json.at("state_form"));
  if (json.contains("layout")) state.layout = to_pairs(json.at("layout"));
}

void require_same_tokenizer(const std::vector<NamedFingerprint>& before,
                            const std::vector<NamedFingerprint>& now, std::string_view where) {
  for (const NamedFingerprint& old_file : before) {
    const auto found = std::find_if(now.begin(), now.end(),
                                    [&](auto& file) { return file.name == old_file.name; });
    require(found != now.end(), ErrorKind::data,
            "the model lacks {}, with which the run in {} began; give the same model folder",
            old_file.name, where);
    require(found->contents == old_file.contents, ErrorKind::data,
            "{} of the model has {} bytes and checksum {}, but the run in {} began with one of {} "
            "bytes and checksum {}; give the same tokenizer, or begin a new run",
            old_file.name, found->contents.bytes, to_hex(found->contents.crc64), where,
            old_file.contents.bytes, to_hex(old_file.contents.crc64));
  }
  require(now.size() == before.size(), ErrorKind::data,
          "the model has {} tokenizer files, but the run in {} began with {}; give the same "
          "tokenizer, or begin a new run",
          now.size(), where, before.size());
}

}  // namespace

std::string to_json(const TrainerState& state) {
  const Json json = {{"best_metric", nullptr},
                     {"best_model_checkpoint", nullptr},
                     {"epoch", state.epoch},
                     {"global_step", state.global_step},
                     {"is_hyper_param_search", false},
                     {"is_local_process_zero", true},
                     {"is_world_process_zero", true},
                     {"log_history", history_to_json(state.log_history)},
                     {"max_steps", state.max_steps},
                     {"num_input_tokens_seen", state.tokens_seen},
                     {"num_train_epochs", state.num_train_epochs},
                     {kForParts, {{kOurs, ours_to_json(state)}}},
                     {"total_flos", 0.0},
                     {"trial_name", nullptr},
                     {"trial_params", nullptr}};
  return json_text(json);
}

TrainerState parse_trainer_state(std::string_view text, std::string_view where) {
  const Json json = parse_object(text, where, ErrorKind::corrupt);
  try {
    require(json.contains(kForParts) && json.at(kForParts).contains(kOurs), ErrorKind::corrupt,
            "{} has no section \"{}\" under \"{}\"; it was written by another program, and a run "
            "cannot go on from it",
            where, kOurs, kForParts);
    TrainerState state;
    state.epoch = json.at("epoch").get<double>();
    state.global_step = json.at("global_step").get<std::int64_t>();
    state.max_steps = json.at("max_steps").get<std::int64_t>();
    state.num_train_epochs = json.at("num_train_epochs").get<double>();
    state.tokens_seen = json.at("num_input_tokens_seen").get<std::int64_t>();
    state.log_history = history_from_json(json.at("log_history"));
    ours_from_json(json.at(kForParts).at(kOurs), where, state);
    return state;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorKind::corrupt,
         "{} is not a state that was saved ({}); it was altered, resume from another checkpoint",
         where, error.what());
  }
}

void require_same_run(const RunIdentity& began_with, const RunIdentity& found,
                      std::string_view where) {
  require(began_with.model == found.model, ErrorKind::data,
          "--model has another configuration (checksum {}) than the run in {} began with (checksum "
          "{}); give the same model, or begin a new run in another output folder",
          to_hex(found.model), where, to_hex(began_with.model));
  require_same_tokenizer(began_with.tokenizer, found.tokenizer, where);
  data::require_same_data(began_with.data, found.data, "--data");
  require(began_with.seed == found.seed, ErrorKind::usage,
          "--seed is {}, but the run in {} began with {}, and the order of its samples follows "
          "from that; give the same seed, or begin a new run",
          found.seed, where, began_with.seed);
}

}  // namespace terrace::checkpoint
