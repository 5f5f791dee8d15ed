#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "terrace/config/settings.h"
#include "terrace/core/log.h"
#include "terrace/data/loader.h"
#include "terrace/model/model.h"
#include "terrace/runtime/machine.h"
#include "terrace/shard/layout.h"
#include "terrace/train/model_source.h"

namespace terrace::train {

/// A model on a device, without its parameters: what training, evaluation, generation and planning
/// begin with. Members are built in this order and depend only on earlier ones.
struct RunSetup {
  runtime::Machine machine;
  ModelSource source;
  DType dtype = DType::f32;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<shard::Layout> layout;
};

/// What a setup is for: to run, or only to plan, for which ranks that are not here may be counted.
enum class SetupUse { run, plan };

/// Errors: usage for a dtype or ranks that are not there; as `make_machine`, `find_model`.
[[nodiscard]] RunSetup set_up(const config::Settings& settings, Log& log,
                              SetupUse use = SetupUse::run);

/// Opens files and folders that were given as `flag` for a model. What runs have written is no data
/// and is passed over. Errors: as `data::Dataset::open`.
[[nodiscard]] std::shared_ptr<const data::Dataset> open_dataset(
    const std::vector<std::string>& files, const char* flag, const config::Settings& settings,
    const ModelSource& source, Log& log);

/// A run's samples.
struct RunData {
  std::shared_ptr<const data::Dataset> dataset;
  std::unique_ptr<data::Loader> training;
  std::unique_ptr<data::Loader> validation;  ///< null: nothing to evaluate on
};

/// Opens the data of a training run for sequences of `length` tokens. Errors: as `open_dataset`,
/// `data::Sequences` and `data::split`.
[[nodiscard]] RunData open_data(const config::Settings& settings, const ModelSource& source,
                                std::int64_t length, Log& log);

}  // namespace terrace::train
