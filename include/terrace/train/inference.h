#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "terrace/config/settings.h"
#include "terrace/core/log.h"
#include "terrace/data/loader.h"
#include "terrace/runtime/executor.h"
#include "terrace/train/run_setup.h"
#include "terrace/train/watch.h"

namespace terrace::train {

/// Mean loss of a data set.
struct Evaluation {
  double loss = 0;  ///< nats a target token
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  double seconds = 0;

  [[nodiscard]] double tokens_per_second() const;
};

/// Runs every sequence of `loader` (one epoch) through the executor's evaluation, `rows` at a time;
/// no step may be under way. `progress` is called before each micro-batch, with sequences in place
/// of bytes.
[[nodiscard]] Evaluation evaluate(runtime::Executor& executor, const data::Loader& loader,
                                  std::int64_t rows, const ProgressFunction& progress = {});

/// Evaluates the model of `settings.model` (a folder, a checkpoint or an output folder) on
/// `settings.data.files`: on every token of them but the first. Errors: does_not_fit, before
/// anything is allocated, when the model and one batch are more than `--host_memory` allows; usage
/// for a preset, which has no weights; data, naming the tensor, for weights that are not finite;
/// numerics for a loss that is not, or weights that the compute type does not hold; as `set_up`,
/// `open_dataset`. Throws `Stopped` when `watch` is asked to stop.
[[nodiscard]] Evaluation evaluate_model(const config::Settings& settings, Watch& watch, Log& log);

struct GenerateOptions {
  std::string prompt;
  std::int64_t tokens_max = 256;
  double temperature = 1;  ///< 0: always the likeliest token
  std::int64_t top_k = 0;  ///< draw among the likeliest k; 0: among all
  std::uint64_t seed = 42;
  bool stop_at_end = true;  ///< stop at an end-of-text token
};

/// Continues a prompt, token by token: each is drawn by a counter-based generator keyed by (seed,
/// position), so the same call gives the same text. Hands each piece of text to `take` as it comes.
/// Positions beyond the model's length see the last ones only; of a prompt that is said. Returns
/// the number of tokens drawn. Errors: does_not_fit and numerics (logits that are not finite) as
/// `evaluate_model`; data, when the model's tokenizer is not supported; usage for a preset or a
/// prompt that the tokenizer cannot encode. Throws `Stopped` when `watch` is asked to stop.
std::int64_t generate(const config::Settings& settings, const GenerateOptions& options,
                      Watch& watch, Log& log, const std::function<void(std::string_view)>& take);

}  // namespace terrace::train
