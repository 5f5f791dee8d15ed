#include "optimizer_tasks.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "terrace/core/error.h"

namespace terrace::runtime {

using plan::Access;
using plan::Task;
using plan::TaskKind;

OptimizerTasks::OptimizerTasks(const RunContext& context, const OptimizerSetup& setup)
    : context_(context),
      setup_(setup),
      streams_(context),
      square_sums_(
          context.device.allocate_pinned(sizeof(kernels::SquareSums), "the gradient norm")),
      optimizer_(setup.options, {setup.format, context.plan.request.gradient,
                                 context.model.compute_dtype(), setup.seed}),
      counter_(setup.skips_max) {
  require(!context.plan.updates_before_decision || setup.max_grad_norm == 0, ErrorKind::internal,
          "the plan updates before the norm is known, but the gradients are to be clipped");
  std::int64_t next = 0;
  for (const shard::Flat& flat : context.layout.flats()) {
    first_index_.push_back(next);
    next += flat.elements;
  }
}

void OptimizerTasks::prepare(std::uint64_t sequence, const StepInputs& inputs) {
  inputs_[sequence % kStepSlots] = inputs;
}

void OptimizerTasks::run(const Task& task, std::uint64_t sequence) {
  switch (task.kind) {
    case TaskKind::norm:
      return add_norm(task);
    case TaskKind::decide:
      return decide(sequence);
    case TaskKind::update:
      return update(task, context_.plan.updates_early(task.flat) ? undecided() : outcome(sequence));
    default:
      fail(ErrorKind::internal, "task \"{}\" is not the optimizer's", name_of(task.kind));
  }
}

std::string OptimizerTasks::tensor_at(int flat, std::int64_t element) const {
  for (const shard::TensorPlace& tensor : context_.layout.flat(flat).tensors) {
    if (element < tensor.range.end()) {
      return context_.model.parameters()[static_cast<std::size_t>(tensor.parameter)].name;
    }
  }
  return "padding";
}

void OptimizerTasks::add_norm(const Task& task) {
  const auto accesses = context_.plan.training.accesses_of(task);
  const Access& gradient = accesses[0];
  const DType dtype = context_.plan.request.gradient;
  streams_.run(accesses,
               kernels::SumSquaresArgs{static_cast<std::int64_t>(gradient.bytes / size_of(dtype)),
                                       {streams_.span(gradient).data(), dtype},
                                       device::Span(square_sums_.host()).data()});
  kernels::SquareSums sums;
  std::memcpy(&sums, square_sums_.host().data(), sizeof sums);
  norm_.add(sums);
  if (sums.nonfinite > 0 && nonfinite_parameter_.empty()) {
    nonfinite_parameter_ = tensor_at(task.flat, sums.first);
  }
}

void OptimizerTasks::decide(std::uint64_t sequence) {
  const StepInputs& inputs = inputs_[sequence % kStepSlots];
  StepOutcome& outcome = outcomes_[sequence % kStepSlots];
  const std::span<std::byte> bytes = context_.memory.host(context_.plan.host_losses);
  const std::span losses(reinterpret_cast<const double*>(bytes.data()),
                         bytes.size() / sizeof(double));
  double sum = 0;
  for (const double loss : losses) sum += loss;

  outcome.step = inputs.step;
  outcome.loss = inputs.target_tokens > 0 ? sum / static_cast<double>(inputs.target_tokens) : 0;
  outcome.grad_norm = norm_.norm();
  outcome.gradient_scale = optim::clip_factor(outcome.grad_norm, setup_.max_grad_norm);
  outcome.learning_rate = setup_.schedule.rate(counter_.state().updates);
  outcome.nonfinite.clear();
  if (!std::isfinite(outcome.loss)) {  // Then so is no gradient, and none of them is the cause.
    outcome.nonfinite = "the loss";
  } else if (norm_.nonfinite() > 0) {
    outcome.nonfinite = fmt::format("the gradient of {}", nonfinite_parameter_);
  }
  outcome.skip = !outcome.nonfinite.empty();
  outcome.skip ? counter_.count_skip() : counter_.count_update();
  outcome.gives_up = counter_.gives_up();
  outcome.updates = counter_.state().updates;
  outcome.skipped = counter_.state().skipped;
  outcome.skipped_in_a_row = counter_.state().skipped_in_a_row;
  norm_ = optim::GradientNorm();
  nonfinite_parameter_.clear();
}

StepOutcome OptimizerTasks::undecided() const {
  StepOutcome outcome;
  outcome.learning_rate = setup_.schedule.rate(counter_.state().updates);
  outcome.updates = counter_.next_update();
  return outcome;
}

void OptimizerTasks::keep_parameter(const Task& task) {
  const auto accesses = context_.plan.training.accesses_of(task);
  const auto& state = context_.plan.request.state;
  const Access& parameter = accesses[state.size()];
  const auto flat = static_cast<std::size_t>(task.flat);
  const bool passes = context_.plan.parameter_tier[flat] == memory::Tier::device &&
                      parameter.region != context_.plan.flat_parameter[flat] &&
                      parameter.region != context_.plan.host_parameter[flat];
  if (!passes) return;
  const auto master = std::ranges::find(state, StateKind::master, &plan::StateElement::kind);
  const Access& source = accesses[static_cast<std::size_t>(master - state.begin())];
  streams_.run(accesses, kernels::NarrowMasterArgs{
                             static_cast<std::int64_t>(source.bytes / sizeof(float)),
                             streams_.span(source).data(),
                             {streams_.span(parameter).data(), context_.model.compute_dtype()}});
}

void OptimizerTasks::update(const Task& task, const StepOutcome& outcome) {
  if (outcome.skip) return keep_parameter(task);
  // states in the order of the request, the parameter, the gradient
  const auto accesses = context_.plan.training.accesses_of(task);
  const plan::Chunk& chunk = context_.plan.chunks[static_cast<std::size_t>(task.chunk)];
  optim::ChunkViews views;
  views.count = chunk.range.count;
  views.first_index = first_index_[static_cast<std::size_t>(chunk.flat)] + chunk.range.first;
  const auto& state = context_.plan.request.state;
  for (std::size_t kind = 0; kind < state.size(); ++kind) {
    const device::Span<std::byte> bytes = streams_.span(accesses[kind]);
    switch (state[kind].kind) {
      case StateKind::master:
        views.source.master = views.target.master = bytes;
        break;
      case StateKind::exp_avg:
        views.source.exp_avg = views.target.exp_avg = bytes;
        break;
      default:
        views.source.exp_avg_sq = views.target.exp_avg_sq = bytes;
        break;
    }
  }
  views.target.parameter = streams_.span(accesses[state.size()]);
  if (setup_.format.master == optim::MasterFormat::split) {
    views.source.parameter = views.target.parameter;
  }
  views.source.gradient = streams_.span(accesses[state.size() + 1]);
  optim::StepScalars scalars;
  scalars.step = outcome.updates;
  scalars.learning_rate = outcome.learning_rate;
  scalars.gradient_scale = outcome.gradient_scale;
  scalars.weight_decay = context_.layout.flat(chunk.flat).decayed ? setup_.options.weight_decay : 0;
  streams_.run(accesses, optimizer_.step(views, scalars));
}

}  // namespace terrace::runtime
