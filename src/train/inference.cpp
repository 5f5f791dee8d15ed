#include "terrace/train/inference.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "terrace/checkpoint/held_values.h"
#include "terrace/config/budgets.h"
#include "terrace/config/planning.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/random.h"
#include "terrace/core/units.h"
#include "terrace/runtime/state_transfer.h"

namespace terrace::train {
namespace {

/// Rows of an evaluation's micro-batch: enough to fill matrix products, few enough for any machine.
constexpr std::int64_t kEvaluationRows = 8;

/// Purpose of the random numbers that draw tokens; see `RandomStream`.
constexpr std::uint64_t kSamplingStream = 0x73616d706c65;  // "sample"

/// A model with its weights, ready for forwards. Members are built in this order.
struct LoadedModel {
  LoadedModel(RunSetup setup_in, plan::Plan plan_in, Watch& watch, Log& log)
      : setup(std::move(setup_in)),
        plan(std::move(plan_in)),
        memory(*setup.machine.device, plan.memory),
        context{*setup.machine.device,
                *setup.machine.ops,
                *setup.machine.optimizer_ops,
                *setup.model,
                *setup.layout,
                plan,
                memory},
        executor(context, {}, {}, [](const runtime::StepOutcome&) { return std::string(); }) {
    runtime::StateTransfer transfer(context, {});
    const auto weights = [&] {
      Activity verifying(watch, "verifying the weights' checksums");
      return open_weights(setup.source, *setup.model, log, verifying.progress());
    }();
    Activity loading(watch, "loading the weights");
    checkpoint::HeldValues held(*weights, setup.dtype);
    transfer.load(held, false, loading.progress());
    held.require_all_held(fmt::format("{} cannot be computed in {}, give another --dtype",
                                      setup.source.folder.string(), name_of(setup.dtype)));
  }

  RunSetup setup;
  plan::Plan plan;
  runtime::RunMemory memory;
  runtime::RunContext context;
  runtime::Executor executor;
};

RunSetup set_up_with_weights(const config::Settings& settings, Log& log) {
  require(
      names_folder(settings.model), ErrorKind::usage,
      "--model is {}, which is not a folder, and a preset has no weights: give a model folder, a "
      "checkpoint or the output folder of a run",
      settings.model);
  return set_up(settings, log);
}

/// The plan of forwards alone, the model's parameters on the device. Errors: does_not_fit, naming
/// need and budget; `lower` is what makes it less.
plan::Plan plan_forwards(const RunSetup& setup, const config::Settings& settings,
                         plan::Purpose purpose, model::BatchShape shape, std::string_view lower) {
  plan::PlanRequest request;
  request.purpose = purpose;
  request.micro_batch = shape;
  request.threads = setup.machine.threads.threads;
  plan::Plan plan = plan::make_plan(*setup.model, *setup.layout, request);
  const config::Budgets budgets = config::budgets_of(settings.placement);
  const plan::Need need(plan);
  require(need.fits(budgets), ErrorKind::does_not_fit,
          "{} with {} x {} tokens at a time needs {} of RAM, {} of it for parameters, but {} "
          "allows {}: {}",
          setup.source.name, shape.rows, shape.sequence, format_bytes(need.process_bytes),
          format_bytes(plan.kept_bytes(StateKind::parameter)), budgets.source,
          format_bytes(budgets.process_bytes), lower);
  config::require_free_ram(need, budgets);
  return plan;
}

/// Why a result is not finite, and what to do: the end of a sentence.
std::string out_of_finite_weights(DType dtype) {
  return fmt::format(
      "all its weights are finite, but values that are computed with them overflow in {}; {}",
      name_of(dtype),
      dtype == DType::f32 ? "the run that made it has diverged, use an earlier checkpoint"
                          : "try --dtype fp32, or use an earlier checkpoint");
}

}  // namespace

double Evaluation::tokens_per_second() const {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

Evaluation evaluate(runtime::Executor& executor, const data::Loader& loader, std::int64_t rows,
                    const ProgressFunction& progress) {
  Evaluation result;
  const std::int64_t begin = now_us();
  const runtime::Executor::HostBatch target = executor.host_batch(0);
  double loss = 0;
  const std::int64_t sequences = loader.samples_per_epoch();
  for (std::int64_t first = 0; first < sequences; first += rows) {
    if (progress) {
      progress({"", static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(sequences)});
    }
    result.tokens +=
        loader.fill({first, std::min(rows, sequences - first)}, target.tokens, target.targets);
    loss += executor.evaluate();
  }
  result.loss = result.tokens > 0 ? loss / static_cast<double>(result.tokens) : 0;
  result.sequences = sequences;
  result.seconds = seconds_since(begin);
  return result;
}

Evaluation evaluate_model(const config::Settings& settings, Watch& watch, Log& log) {
  RunSetup setup = set_up_with_weights(settings, log);
  model::BatchShape shape = config::micro_batch_shape(settings, setup.source.config);
  shape.rows = settings.batch.micro.value_or(kEvaluationRows);
  const auto dataset = open_dataset(settings.data.files, "--data", settings, setup.source, log);
  const data::Loader loader(data::Sequences(dataset, shape.sequence), {.shuffle = false});
  plan::Plan plan = plan_forwards(setup, settings, plan::Purpose::evaluate, shape,
                                  "raise --host_memory, or lower --batch_size or --max_length");
  LoadedModel loaded(std::move(setup), std::move(plan), watch, log);
  Activity evaluating(watch, "evaluating", {.noun = "sequence"});
  const Evaluation result = evaluate(loaded.executor, loader, shape.rows, evaluating.progress());
  require(std::isfinite(result.loss), ErrorKind::numerics, "the loss of {} is not finite: {}",
          settings.model, out_of_finite_weights(loaded.setup.dtype));
  return result;
}

namespace {

/// Draws a token from logits: the likeliest for temperature 0, else from the softmax of
/// logits / temperature over the `top_k` likeliest.
class Sampler {
 public:
  Sampler(const GenerateOptions& options, std::size_t vocabulary)
      : options_(options), random_(options.seed, kSamplingStream), order_(vocabulary) {}

  std::int32_t draw(std::span<const float> logits, std::int64_t position) {
    if (options_.temperature == 0) {
      return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
    }
    std::iota(order_.begin(), order_.end(), 0);
    const std::size_t kept = options_.top_k > 0
                                 ? std::min(order_.size(), static_cast<std::size_t>(options_.top_k))
                                 : order_.size();
    // Ties go to the smaller id, so that the draw is a function of the logits.
    std::ranges::partial_sort(order_, order_.begin() + static_cast<std::ptrdiff_t>(kept),
                              [&](std::int32_t a, std::int32_t b) {
                                const float x = logits[static_cast<std::size_t>(a)];
                                const float y = logits[static_cast<std::size_t>(b)];
                                return x != y ? x > y : a < b;
                              });
    const double largest = logits[static_cast<std::size_t>(order_[0])];
    weights_.resize(kept);
    double sum = 0;
    for (std::size_t i = 0; i < kept; ++i) {
      const double logit = logits[static_cast<std::size_t>(order_[i])];
      weights_[i] = std::exp((logit - largest) / options_.temperature);
      sum += weights_[i];
    }
    double left = random_.uniform(static_cast<std::uint64_t>(position)) * sum;
    for (std::size_t i = 0; i < kept; ++i) {
      left -= weights_[i];
      if (left < 0) return order_[i];
    }
    return order_[kept - 1];
  }

 private:
  const GenerateOptions& options_;
  RandomStream random_;
  std::vector<std::int32_t> order_;
  std::vector<double> weights_;
};

/// Of a prompt that is longer than what the model reads at once.
void say_what_is_not_read(std::int64_t prompt, std::int64_t read, std::int64_t longest, Log& log) {
  if (prompt <= read) return;
  log.warning(
      "the prompt has {} with the separator before it, and {} are read at once: the first {} {} "
      "left out{}",
      counted(prompt, "token"), read, prompt - read, prompt - read == 1 ? "is" : "are",
      read < longest ? fmt::format("; raise --max_length, up to {}", longest) : "");
}

}  // namespace

std::int64_t generate(const config::Settings& settings, const GenerateOptions& options,
                      Watch& watch, Log& log, const std::function<void(std::string_view)>& take) {
  RunSetup setup = set_up_with_weights(settings, log);
  const bool bytes = setup.source.tokenizer == data::TokenizerKind::bytes ||
                     (setup.source.tokenizer == data::TokenizerKind::none &&
                      setup.source.config.vocab_size == data::Tokenizer::kVocabSize);
  require(bytes, ErrorKind::data,
          "the tokenizer of {} is not supported yet: only models that read bytes can generate",
          setup.source.folder.string());
  const data::Tokenizer tokenizer;
  std::vector<std::int32_t> tokens = {data::Tokenizer::kSeparator};
  const std::vector<std::int32_t> prompt = tokenizer.encode(options.prompt);
  tokens.insert(tokens.end(), prompt.begin(), prompt.end());

  const auto wanted = static_cast<std::int64_t>(tokens.size()) + options.tokens_max;
  model::BatchShape shape = config::micro_batch_shape(settings, setup.source.config);
  shape = {1, std::min(shape.sequence, wanted)};
  say_what_is_not_read(static_cast<std::int64_t>(tokens.size()), shape.sequence,
                       setup.source.config.max_position_embeddings, log);
  const std::vector<std::int64_t> ends = setup.source.eos_token_ids;
  plan::Plan plan = plan_forwards(setup, settings, plan::Purpose::generate, shape,
                                  "raise --host_memory, or lower --max_length or --max_new_tokens");
  LoadedModel loaded(std::move(setup), std::move(plan), watch, log);

  Sampler sampler(options, static_cast<std::size_t>(loaded.setup.source.config.vocab_size));
  for (std::int64_t drawn = 0; drawn < options.tokens_max; ++drawn) {
    watch.stop_if_asked("generating");
    const auto length = static_cast<std::int64_t>(tokens.size());
    const std::int64_t seen = std::min(length, shape.sequence);
    const runtime::Executor::HostBatch batch = loaded.executor.host_batch(0);
    std::ranges::fill(batch.tokens, data::Tokenizer::kSeparator);
    std::copy(tokens.end() - seen, tokens.end(), batch.tokens.begin());
    const auto logits = loaded.executor.logits(static_cast<std::int32_t>(seen - 1));
    require(std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }),
            ErrorKind::numerics, "{} gives token {} no finite probabilities: {}", settings.model,
            drawn + 1, out_of_finite_weights(loaded.setup.dtype));
    const std::int32_t token = sampler.draw(logits, length);
    if (options.stop_at_end && std::ranges::find(ends, token) != ends.end()) return drawn;
    tokens.push_back(token);
    take(tokenizer.decode(std::span(&token, 1)));
  }
  return options.tokens_max;
}

}  // namespace terrace::train
