#include "terrace/train/run_setup.h"

#include <algorithm>

#include "own_files.h"
#include "terrace/config/planning.h"
#include "terrace/core/error.h"

namespace terrace::train {
namespace {

runtime::DeviceKind kind_of(config::DeviceChoice choice) {
  switch (choice) {
    case config::DeviceChoice::automatic:
      return runtime::DeviceKind::automatic;
    case config::DeviceChoice::cpu:
      return runtime::DeviceKind::host;
    case config::DeviceChoice::cuda:
      return runtime::DeviceKind::cuda;
  }
  return runtime::DeviceKind::automatic;
}

}  // namespace

RunSetup set_up(const config::Settings& settings, Log& log, SetupUse use) {
  const int ranks = static_cast<int>(settings.ranks.ranks);
  require(ranks == 1 || use == SetupUse::plan, ErrorKind::usage,
          "--ranks is {}, but this build trains on one rank: leave it out", ranks);
  RunSetup setup;
  setup.machine = runtime::make_machine({.device = kind_of(settings.placement.device),
                                         .threads = static_cast<int>(settings.ranks.threads),
                                         .runs_here = use == SetupUse::run},
                                        log);
  setup.source = find_model(settings.model, log);
  setup.dtype = config::choose_dtype(settings, setup.machine.ops->native(DType::bf16));
  const std::string instead = setup.machine.ops->instead_of_native(setup.dtype);
  if (!instead.empty()) log.fallback("native products", instead);
  setup.model =
      std::make_unique<model::Model>(setup.source.config, setup.dtype, *setup.machine.ops);
  setup.layout = std::make_unique<shard::Layout>(shard::shape_of(*setup.model), ranks,
                                                 settings.optimizer.decay_all);
  return setup;
}

std::shared_ptr<const data::Dataset> open_dataset(const std::vector<std::string>& files,
                                                  const char* flag,
                                                  const config::Settings& settings,
                                                  const ModelSource& source, Log& log) {
  data::DatasetOptions options;
  options.tokenizer = source.tokenizer;
  options.vocab_size = source.config.vocab_size;
  options.flag = flag;
  options.is_own = OwnFiles(settings);
  const std::vector<std::filesystem::path> paths(files.begin(), files.end());
  return data::Dataset::open(paths, options, log);
}

RunData open_data(const config::Settings& settings, const ModelSource& source, std::int64_t length,
                  Log& log) {
  RunData result;
  result.dataset = open_dataset(settings.data.files, "--data", settings, source, log);
  const auto seed = static_cast<std::uint64_t>(settings.numerics.seed);
  // A number of steps takes as many epochs as it takes.
  const double epochs = settings.length.max_steps > 0 ? 0 : settings.length.epochs;
  const data::LoaderOptions training{seed, true, epochs};
  const data::LoaderOptions validation{seed, false};
  const data::Sequences all(result.dataset, length);
  if (!settings.data.eval_files.empty()) {
    const data::Sequences held_out(
        open_dataset(settings.data.eval_files, "--eval_data", settings, source, log), length);
    result.training = std::make_unique<data::Loader>(all.whole(), training);
    result.validation = std::make_unique<data::Loader>(held_out, validation);
    return result;
  }
  const data::Split parts = data::split(all, settings.data.validation_fraction);
  result.training = std::make_unique<data::Loader>(parts.training, training);
  if (parts.validation.count() > 0) {
    result.validation = std::make_unique<data::Loader>(parts.validation, validation);
  }
  return result;
}

}  // namespace terrace::train
