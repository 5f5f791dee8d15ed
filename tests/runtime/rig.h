#pragma once

#include <bit>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/infinite_token.h"
#include "terrace/core/random.h"
#include "terrace/device/seeded.h"
#include "terrace/io/memory_disk.h"
#include "terrace/kernels/cpu.h"
#include "terrace/runtime/executor.h"
#include "terrace/runtime/first_touch.h"
#include "terrace/runtime/state_transfer.h"
#include "train/training.h"

// Whole steps without a trainer: the executor on any device, with a disk in memory.

namespace terrace::runtime::testing {
using train::testing::small_llama;

/// What a step came to; equal when the bits are, so that a skipped step's equal each other.
struct StepResult {
  double loss = 0;
  double grad_norm = 0;
  friend bool operator==(const StepResult& a, const StepResult& b) {
    return std::bit_cast<std::uint64_t>(a.loss) == std::bit_cast<std::uint64_t>(b.loss) &&
           std::bit_cast<std::uint64_t>(a.grad_norm) == std::bit_cast<std::uint64_t>(b.grad_norm);
  }
};

inline plan::PlanRequest small_request() {
  plan::PlanRequest request;
  request.micro_batch = {2, 8};
  request.micro_batches = 2;
  request.gradient = DType::f32;
  request.state = {{StateKind::master, 4}, {StateKind::exp_avg, 4}, {StateKind::exp_avg_sq, 4}};
  request.chunk_elements = 2048;
  request.chunk_slots = 2;
  return request;
}

/// What a rig trains.
struct RigModel {
  model::Config config = small_llama(true);
  DType dtype = DType::f32;
  optim::StateFormat format;
  double max_grad_norm = 0;
  ThreadCount threads;  ///< the optimizer's
};

/// A model and all that runs its steps, on one thread of compute.
class Rig {
 public:
  /// `skipped_step`: the one whose gradients are not finite; 0: none.
  explicit Rig(const plan::PlanRequest& request, std::int64_t skipped_step = 0,
               const RigModel& trained = {})
      : skipped_step_(skipped_step),
        trained_(trained),
        log_([](LogLevel, std::string_view) {}),
        ops_(kernels::make_cpu_ops({})),
        model_(config_of(trained, skipped_step), trained.dtype, *ops_),
        layout_(shard::shape_of(model_), 1),
        plan_(plan::make_plan(model_, layout_, request)) {}

  [[nodiscard]] plan::Plan& plan() { return plan_; }

  /// Loads the initial state and runs steps, two under way at once.
  std::vector<StepResult> run(std::unique_ptr<device::Device> device,
                              const std::shared_ptr<io::MemoryDisk>& disk, std::int64_t steps) {
    RunMemory memory(*device, plan_.memory);
    const std::unique_ptr<io::PageStore> store = make_store(disk);
    const RunContext context{*device, *ops_, *optimizer_ops_, model_,
                             layout_, plan_, memory,          store.get()};
    touch_first(context);
    StateTransfer transfer(context, trained_.format);
    InitialState initial(model_, 7, workers_);
    WithInfiniteToken infinite(initial, model_.config().hidden_size);
    if (skipped_step_ > 0) {
      transfer.load(infinite, false);
    } else {
      transfer.load(initial, false);
    }
    if (loaded_) loaded_(*disk);
    OptimizerSetup setup;
    setup.schedule = config::learning_rate_schedule({}, 100, 1e-2);
    setup.format = trained_.format;
    setup.max_grad_norm = trained_.max_grad_norm;
    Executor executor(context, {.overwrite_released = true}, setup,
                      [](const StepOutcome&) { return std::string("state"); });
    std::vector<StepResult> results;
    results.reserve(static_cast<std::size_t>(steps) + 1);
    auto finish = [&] {
      const StepOutcome& outcome = executor.finish_step();
      results.push_back({outcome.loss, outcome.grad_norm});
    };
    for (std::int64_t step = 1; step <= steps; ++step) {
      if (executor.steps_unfinished() == plan::kStepsInFlight) finish();
      if (before_step_) before_step_(step);
      StepInputs inputs{Step(step)};
      for (int micro_batch = 0; micro_batch < plan_.request.micro_batches; ++micro_batch) {
        const Executor::HostBatch batch = executor.host_batch(micro_batch);
        fill(batch, step, micro_batch);
        inputs.target_tokens += static_cast<std::int64_t>(batch.targets.size());
      }
      executor.post_step(inputs);
    }
    while (executor.steps_unfinished() > steps_left_) finish();
    if (steps_left_ > 0) return results;
    if (before_step_) before_step_(steps + 1);
    fill(executor.host_batch(0), 0, 0);
    results.push_back({executor.evaluate(), 0});  // sees the last step's parameters
    transfer.forget();
    if (finished_) finished_(transfer, model_);
    return results;
  }
  std::vector<StepResult> run_seeded(std::uint64_t seed, std::int64_t steps = 3) {
    io::MemoryDiskOptions options;
    options.seed = seed;
    options.short_probability = 0.05;
    options.passing_probability = 0.05;
    options.delay_max = 5;
    return run(device::make_seeded_device(seed), std::make_shared<io::MemoryDisk>(options), steps);
  }
  std::vector<StepResult> run_threads(std::int64_t steps = 3) {
    return run(device::make_host_device(),
               std::make_shared<io::MemoryDisk>(io::MemoryDiskOptions{}), steps);
  }
  /// Called with the disk once the state is loaded.
  std::function<void(io::MemoryDisk&)> loaded_;
  /// Puts a driver of a test's own before each of the disk's.
  std::function<std::unique_ptr<io::Driver>(std::unique_ptr<io::Driver>)> wrap_driver_;
  /// The run ends with its last steps, so many, under way, and without an evaluation.
  int steps_left_ = 0;
  /// Called before each step is posted, and with the number after the last one when all are done.
  std::function<void(std::int64_t step)> before_step_;

  /// Called with all state when the steps are done.
  std::function<void(StateTransfer& state, const model::Model& model)> finished_;

 private:
  /// A tied weight would make the infinite token's logits infinite in every step.
  static model::Config config_of(const RigModel& trained, std::int64_t skipped_step) {
    model::Config config = trained.config;
    if (skipped_step > 0) config.tie_word_embeddings = false;
    return config;
  }
  [[nodiscard]] std::unique_ptr<io::PageStore> make_store(std::shared_ptr<io::MemoryDisk> disk) {
    if (!plan_.uses_disk()) return nullptr;
    std::vector<io::PageSpec> pages;
    std::vector<io::PageSpec> scratch;
    const auto regions = plan_.memory.regions();
    for (std::size_t index = 0; index < regions.size(); ++index) {
      if (regions[index].tier == memory::Tier::disk) {
        (regions[index].persistent() ? pages : scratch)
            .push_back({io::PageId(index), regions[index].bytes, regions[index].purpose});
      }
    }
    const io::StoreFolder folders[] = {{"/disk", 1}};
    io::PageStoreOptions options;
    options.engine_factory = [this, disk = std::move(disk)](const io::EngineOptions& engine,
                                                            Log& log) {
      std::unique_ptr<io::Driver> driver = io::make_memory_driver(disk);
      if (wrap_driver_) driver = wrap_driver_(std::move(driver));
      return std::make_unique<io::Engine>(std::move(driver), engine, log);
    };
    options.extents_per_page = static_cast<int>(plan_.copies(memory::Tier::disk));
    auto store = io::PageStore::create(folders, pages, options, log_);
    store->add_scratch(scratch);
    return store;
  }
  void fill(const Executor::HostBatch& batch, std::int64_t step, int micro_batch) const {
    const RandomStream random(static_cast<std::uint64_t>(step),
                              static_cast<std::uint64_t>(micro_batch));
    for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
      batch.tokens[i] = static_cast<std::int32_t>(random.bits(2 * i) % WithInfiniteToken::kToken);
      batch.targets[i] = static_cast<std::int32_t>(random.bits(2 * i + 1) % 256);
    }
    if (step > 0 && step == skipped_step_) batch.tokens[0] = WithInfiniteToken::kToken;
  }

  std::int64_t skipped_step_;
  RigModel trained_;
  Log log_;
  std::unique_ptr<kernels::Ops> ops_;
  model::Model model_;
  shard::Layout layout_;
  Workers workers_{trained_.threads};
  std::unique_ptr<kernels::OptimizerOps> optimizer_ops_ = kernels::make_cpu_optimizer_ops(workers_);
  plan::Plan plan_;
};

/// The placements that differ in their tasks.
inline std::vector<plan::PlanRequest> requests() {
  using memory::Tier;
  std::vector<plan::PlanRequest> list;
  int number = 0;
  for (const Tier parameters : {Tier::device, Tier::host, Tier::disk}) {
    for (const auto& [state, resident] : {std::pair(Tier::device, 0.0), std::pair(Tier::host, 0.0),
                                          std::pair(Tier::disk, 0.0), std::pair(Tier::disk, 0.5)}) {
      plan::PlanRequest request = small_request();
      request.placement = {parameters, state, Tier::host, resident};
      request.order =
          number % 2 == 0 ? plan::MicroBatchOrder::unit_major : plan::MicroBatchOrder::batch_major;
      request.prefetch_units = number % 4;
      request.recompute = number % 3 != 0;
      if (number % 4 == 1 || number % 4 == 2) {
        request.placement.boundaries = number % 4 == 1 ? Tier::host : Tier::disk;
        request.placement.boundaries_resident = number > 8 ? 0.5 : 0;
      }
      list.push_back(request);
      ++number;
    }
  }
  // Half of the parameters on each tier that is faster than the rest's.
  for (const auto& [rest, resident] :
       {std::pair(Tier::host, Tier::device), std::pair(Tier::disk, Tier::device),
        std::pair(Tier::disk, Tier::host)}) {
    plan::PlanRequest request = small_request();
    request.placement = {rest, rest, Tier::host, 0, resident, 0.5};
    request.order =
        number % 2 == 0 ? plan::MicroBatchOrder::unit_major : plan::MicroBatchOrder::batch_major;
    request.prefetch_units = number % 3;
    list.push_back(request);
    ++number;
  }
  // Each chunk as soon as its gradient is final; then those whose parameters are on disk alone.
  for (const auto& [order, resident] : {std::pair(plan::MicroBatchOrder::unit_major, 0.0),
                                        std::pair(plan::MicroBatchOrder::batch_major, 0.0),
                                        std::pair(plan::MicroBatchOrder::unit_major, 0.5)}) {
    plan::PlanRequest request = small_request();
    request.placement = {Tier::disk, Tier::disk, Tier::host, 0, Tier::host, resident};
    request.placement.boundaries =
        order == plan::MicroBatchOrder::unit_major ? Tier::disk : Tier::host;
    request.may_update_before_decision = true;
    request.order = order;
    request.prefetch_units = 2;
    list.push_back(request);
  }
  return list;
}

}  // namespace terrace::runtime::testing
