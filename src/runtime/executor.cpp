#include "terrace/runtime/executor.h"

#include <cstring>

#include "host_lane.h"
#include "optimizer_tasks.h"
#include "program.h"
#include "terrace/core/error.h"

namespace terrace::runtime {

using plan::Lane;

struct Executor::Impl {
  Impl(const RunContext& context_in, const LaneOptions& options, const OptimizerSetup& setup,
       RunState run_state_in)
      : context(context_in),
        run_state(std::move(run_state_in)),
        training(context, options, context.plan.training),
        evaluation(context, options, context.plan.evaluation),
        optimizer(context, setup) {
    lanes.push_back(std::make_unique<SerialLane>(
        training, Lane::optimizer,
        [this](const plan::Task& task, std::uint64_t sequence) { optimizer.run(task, sequence); }));
    if (!context.plan.uses_disk()) return;
    require(context.store != nullptr, ErrorKind::internal, "a plan with disk pages needs a store");
    for (Program* program : {&training, &evaluation}) {
      add_disk_lane(*program, Lane::disk_read);
    }
    add_disk_lane(training, Lane::disk_write);
  }

  ~Impl() {
    // Whatever still waits for a task that will never come is let go.
    const auto stopped = std::make_exception_ptr(
        Error(ErrorKind::internal, "the run was stopped", __FILE__, __LINE__));
    training.poison(stopped);
    evaluation.poison(stopped);
  }

  void add_disk_lane(Program& program, Lane lane) {
    auto& group = &program == &training ? lanes : evaluation_lanes;
    auto disk = std::make_unique<DiskLane>(
        program, lane, *context.store, [this](std::uint64_t sequence) { commit(sequence); },
        [this](std::uint64_t sequence) { return optimizer.outcome(sequence).skip; });
    disks.push_back(disk.get());
    group.push_back(std::move(disk));
  }

  /// Runs the evaluation schedule once.
  void forward();

  void commit(std::uint64_t sequence) {
    const StepOutcome& outcome = optimizer.outcome(sequence);
    const std::string state = run_state(outcome);
    context.store->commit(Version(outcome.step.value), std::as_bytes(std::span(state)));
  }

  RunContext context;
  RunState run_state;
  Program training;
  Program evaluation;
  OptimizerTasks optimizer;
  std::vector<std::unique_ptr<HostLane>> lanes;
  std::vector<std::unique_ptr<HostLane>> evaluation_lanes;
  std::vector<const DiskLane*> disks;  ///< among the lanes
  std::uint64_t posted = 0;            ///< steps
  std::uint64_t finished = 0;          ///< steps
  std::uint64_t evaluated = 0;
};

Executor::Executor(const RunContext& context, const LaneOptions& lanes,
                   const OptimizerSetup& optimizer, RunState run_state)
    : impl_(std::make_unique<Impl>(context, lanes, optimizer, std::move(run_state))) {}
Executor::~Executor() = default;

Executor::HostBatch Executor::host_batch(int micro_batch) {
  impl_->training.wait_for_batches(impl_->posted);
  const std::span<std::byte> bytes = impl_->context.memory.host(
      impl_->context.plan.host_batch[static_cast<std::size_t>(micro_batch)]);
  const std::span values(reinterpret_cast<std::int32_t*>(bytes.data()),
                         bytes.size() / sizeof(std::int32_t));
  return {values.first(values.size() / 2), values.last(values.size() / 2)};
}

void Executor::post_step(const StepInputs& inputs) {
  require(steps_unfinished() < plan::kStepsInFlight, ErrorKind::internal,
          "too many steps are posted");
  const std::uint64_t sequence = ++impl_->posted;
  impl_->optimizer.prepare(sequence, inputs);
  const float loss_scale = inputs.target_tokens > 0
                               ? static_cast<float>(1.0 / static_cast<double>(inputs.target_tokens))
                               : 0.0F;
  impl_->training.begin(sequence);
  // The host's lanes first: a stream whose queue is full waits for them.
  for (const auto& lane : impl_->lanes) lane->post(sequence, inputs.step);
  impl_->training.enqueue(sequence, inputs.step, loss_scale);
}

const StepOutcome& Executor::finish_step() {
  require(steps_unfinished() > 0, ErrorKind::internal, "no step is under way");
  impl_->training.synchronize(impl_->finished + 1);
  impl_->training.explain_waits(impl_->finished + 1);
  return impl_->optimizer.outcome(++impl_->finished);
}

int Executor::steps_unfinished() const { return static_cast<int>(impl_->posted - impl_->finished); }

const StepTimes& Executor::last_times() const { return impl_->training.times(impl_->finished); }

std::optional<io::Capabilities> Executor::disk_capabilities() const {
  std::optional<io::Capabilities> all;
  for (const DiskLane* lane : impl_->disks) {
    const io::Capabilities can = lane->capabilities();
    if (!all) all = can;
    all->direct = all->direct && can.direct;
    all->registered = all->registered && can.registered;
  }
  return all;
}

void Executor::Impl::forward() {
  require(posted == finished, ErrorKind::internal, "a step is under way");
  const std::uint64_t sequence = ++evaluated;
  evaluation.begin(sequence);
  for (const auto& lane : evaluation_lanes) lane->post(sequence, Step(0));
  evaluation.enqueue(sequence, Step(0), 0);
  evaluation.synchronize(sequence);
}

std::span<const float> Executor::logits(std::int32_t row) {
  const plan::Plan& plan = impl_->context.plan;
  std::memcpy(impl_->context.memory.host(plan.host_position).data(), &row, sizeof row);
  impl_->forward();
  const std::span<std::byte> bytes = impl_->context.memory.host(plan.host_logits);
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

double Executor::evaluate() {
  impl_->forward();
  double loss = 0;
  const std::span<std::byte> bytes = impl_->context.memory.host(impl_->context.plan.host_losses);
  std::memcpy(&loss, bytes.data(), sizeof loss);
  return loss;
}

const optim::StepCounter::State& Executor::counter() const { return impl_->optimizer.counter(); }

void Executor::restore(const optim::StepCounter::State& state) { impl_->optimizer.restore(state); }

}  // namespace terrace::runtime
