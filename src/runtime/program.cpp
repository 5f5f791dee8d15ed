#include "program.h"

#include <algorithm>

#include "lifetimes.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"

namespace terrace::runtime {

using plan::Access;
using plan::Lane;
using plan::Task;
using plan::TaskKind;

Program::Program(const RunContext& context, const LaneOptions& options,
                 const plan::Schedule& schedule)
    : context_(context),
      trace_(options.trace),
      schedule_(schedule),
      bound_(schedule.tasks.size()),
      released_(schedule.tasks.size()),
      causes_(schedule) {
  spans_.fill(std::vector<TaskSpan>(schedule.tasks.size()));
  std::ranges::transform(options.rates, paces_.begin(), [](double rate) { return Pace(rate); });
  for (std::size_t index = 0; index < schedule.tasks.size(); ++index) {
    events_.push_back(context_.device.make_event());
    const Lane lane = schedule.tasks[index].lane;
    auto& stream = streams_[static_cast<std::size_t>(lane)];
    if (!is_stream(lane)) continue;
    if (!stream) stream = context_.device.make_stream(std::string(name_of(lane)));
    bind(index);
  }
  if (options.overwrite_released) find_released();
}

void Program::find_released() {
  for (const Lifetime& life : lifetimes(context_.plan, schedule_)) {
    const bool host = context_.plan.memory.region(life.region).tier == memory::Tier::host;
    if (!life.last_sees_all || !(host || context_.device.memory_is_host())) continue;
    const auto last = static_cast<std::size_t>(life.last);
    // Only what the last task itself touches is guarded by waits for it.
    for (const Access& access : schedule_.accesses_of(schedule_.tasks[last])) {
      if (access.region != life.region) continue;
      released_[last].push_back(
          context_.memory.span(access.region, access.offset, access.bytes).on_host());
    }
  }
}

void Program::bind(std::size_t index) {
  const Task& task = schedule_.tasks[index];
  const auto accesses = schedule_.accesses_of(task);
  Bound& bound = bound_[index];
  if (task.unit < 0 || task.lane != Lane::compute) return;
  // The order of the accesses is stated with each `TaskKind`.
  std::size_t next = 0;
  auto take = [&] { return pointer(accesses[next++]); };
  const bool has_input = context_.model.units()[static_cast<std::size_t>(task.unit)].kind !=
                         model::UnitKind::embedding;
  const model::BatchShape shape = context_.plan.request.micro_batch;
  const auto tokens = static_cast<std::size_t>(shape.tokens());
  const device::Span<std::int32_t> batch(take(), 2 * tokens);
  bound.batch = {shape, batch.subspan(0, tokens), batch.subspan(tokens, tokens)};
  bound.activations.scratch = take();
  switch (task.kind) {
    case TaskKind::forward:
    case TaskKind::recompute:
      bound.activations.saved = take();
      bound.activations.output = take();
      break;
    case TaskKind::head:
      bound.loss = take();
      bound.d_boundary = take();
      break;
    case TaskKind::head_loss:
      bound.loss = take();
      break;
    case TaskKind::head_logits:
      bound.position = take();
      bound.logits = take();
      break;
    default:
      bound.activations.saved = take();
      bound.d_boundary = take();
      break;
  }
  if (has_input) bound.activations.input = take();
  auto rest = accesses.subspan(next);
  const std::size_t flats = context_.layout.flats_of_unit(task.unit).size();
  if (task.kind == TaskKind::head || task.kind == TaskKind::backward) {
    bind_gradients(task, rest.first(flats), bound);
    rest = rest.subspan(flats);
  }
  if (!rest.empty()) bind_weights(task, rest.first(flats), bound);
}

namespace {

/// The position of `flat` among the flats of a unit.
std::size_t position_of(std::span<const int> flats, int flat) {
  return static_cast<std::size_t>(std::ranges::find(flats, flat) - flats.begin());
}

}  // namespace

void Program::bind_weights(const Task& task, std::span<const Access> accesses, Bound& bound) {
  const DType dtype = context_.model.compute_dtype();
  for (const int parameter :
       context_.model.units()[static_cast<std::size_t>(task.unit)].parameters) {
    const shard::ParameterPlace& place = context_.layout.place(parameter);
    const kernels::View flat{
        pointer(accesses[position_of(context_.layout.flats_of_unit(task.unit), place.flat)]),
        dtype};
    bound.weights.push_back(flat.offset(place.range.first));
  }
}

void Program::bind_gradients(const Task& task, std::span<const Access> accesses, Bound& bound) {
  for (const int parameter :
       context_.model.units()[static_cast<std::size_t>(task.unit)].parameters) {
    const shard::ParameterPlace& place = context_.layout.place(parameter);
    const kernels::View flat{
        pointer(accesses[position_of(context_.layout.flats_of_unit(task.unit), place.flat)]),
        DType::f32};
    bound.gradients.push_back({flat.offset(place.range.first), task.micro_batch > 0});
  }
}

void Program::enqueue(std::uint64_t sequence, Step step, float loss_scale) {
  for (std::size_t index = 0; index < schedule_.tasks.size(); ++index) {
    const Task& task = schedule_.tasks[index];
    if (!is_stream(task.lane)) continue;
    device::Stream& stream = *streams_[static_cast<std::size_t>(task.lane)];
    StepTimes::LaneTimes* times = &this->times(sequence).of(task.lane);
    std::int64_t* mark = &mark_us_[static_cast<std::size_t>(task.lane)];
    TaskSpan* span = &this->span(sequence, index);
    stream.enqueue([mark, span] { *mark = span->queued_us = now_us(); });
    bool waits = false;
    for (const plan::Wait& wait : schedule_.waits_of(task)) {
      const std::uint64_t value = sequence - static_cast<std::uint64_t>(wait.steps_back);
      if (event(wait.task).reached(value)) continue;
      stream.wait(event(wait.task), value);
      waits = true;
    }
    if (waits) stream.enqueue([mark] { *mark = now_us(); });
    run(task, bound_[index], stream, loss_scale);
    stream.enqueue([this, index, mark, times, &task, sequence, step] {
      overwrite_released(static_cast<int>(index));
      hold(task, *mark);
      const std::int64_t now = now_us();
      times->busy_us += now - *mark;
      times->bytes += task.bytes;
      record(task, sequence, step, *mark, now);
    });
    stream.record(event(static_cast<int>(index)), sequence);
  }
}

std::int64_t Program::due(const Task& task, std::int64_t begin_us) {
  Pace& pace = paces_[static_cast<std::size_t>(task.lane)];
  const double work = task.lane == Lane::compute ? task.flops : static_cast<double>(task.bytes);
  return pace.holds() && work > 0 ? pace.put(work, begin_us) : 0;
}

void Program::sleep_until(Lane lane, std::int64_t due_us) {
  const std::int64_t now = now_us();
  if (now >= due_us) return;
  sleep_us(due_us - now);
  paces_[static_cast<std::size_t>(lane)].woke(due_us, now_us());
}

void Program::explain_waits(std::uint64_t sequence) {
  // What lets a task of this run go on is of this run or of the one before, whose own causes may be
  // a run older.
  std::array<std::span<const TaskSpan>, 3> runs;
  const std::size_t count = std::min<std::size_t>(runs.size(), sequence);
  for (std::size_t back = 0; back < count; ++back) {
    runs[back] = spans_[(sequence - back) % kStepSlots];
  }
  times(sequence).waited_us = causes_.of(std::span(runs).first(count));
}

void Program::record(const Task& task, std::uint64_t sequence, Step step, std::int64_t begin_us,
                     std::int64_t end_us) {
  TaskSpan& kept = span(sequence, static_cast<std::size_t>(&task - schedule_.tasks.data()));
  kept.begin_us = begin_us;
  kept.end_us = end_us;
  if (trace_ == nullptr) return;
  trace_->record(static_cast<std::size_t>(task.lane),
                 {name_of(task.kind), begin_us, end_us, step.value,
                  static_cast<int>(&task - schedule_.tasks.data()), task.unit, task.micro_batch,
                  task.chunk, task.bytes});
}

void Program::run(const Task& task, const Bound& bound, device::Stream& stream, float loss_scale) {
  const auto accesses = schedule_.accesses_of(task);
  auto host = [&](const Access& access) {
    return context_.memory.host(access.region, access.offset, access.bytes);
  };
  switch (task.kind) {
    case TaskKind::copy_batch:
    case TaskKind::fetch_parameter:
    case TaskKind::fetch_boundary:
      return stream.copy_to_device(pointer(accesses[1]), host(accesses[0]));
    case TaskKind::store_parameter:
      return stream.copy_to_device(pointer(accesses[0]), host(accesses[1]));
    case TaskKind::store_gradient:
    case TaskKind::store_boundary:
    case TaskKind::store_loss:
      return stream.copy_to_host(host(accesses[0]), pointer(accesses[1]));
    case TaskKind::forward:
    case TaskKind::recompute:
      return context_.model.forward(stream, task.unit, bound.weights, bound.batch,
                                    bound.activations);
    case TaskKind::head:
      return context_.model.head_forward_backward(stream, bound.weights, bound.batch,
                                                  bound.activations, loss_scale, bound.d_boundary,
                                                  bound.gradients, bound.loss);
    case TaskKind::head_loss:
      return context_.model.head_loss(stream, bound.weights, bound.batch, bound.activations,
                                      bound.loss);
    case TaskKind::head_logits:
      return context_.model.head_logits(stream, bound.weights, bound.batch, bound.activations,
                                        device::Span<std::int32_t>(bound.position, 1),
                                        bound.logits);
    case TaskKind::backward:
      return context_.model.backward(stream, task.unit, bound.weights, bound.batch,
                                     bound.activations, bound.d_boundary, bound.gradients);
    case TaskKind::round_gradient:
      return round_gradient(task, stream);
    default:
      fail(ErrorKind::internal, "task \"{}\" is not one of a stream", name_of(task.kind));
  }
}

void Program::round_gradient(const Task& task, device::Stream& stream) {
  const auto accesses = schedule_.accesses_of(task);
  const shard::Flat& flat = context_.layout.flat(task.flat);
  const kernels::View target{pointer(accesses[0]), context_.plan.request.gradient};
  const kernels::View sum{pointer(accesses[1]), DType::f32};
  std::int64_t end = 0;  // padding belongs to no tensor and must be zero: the norm reads it
  auto clear_to = [&](std::int64_t next) {
    if (next > end) {
      context_.ops.run(stream, kernels::ClearArgs{
                                   target.offset(end).data,
                                   static_cast<std::uint64_t>(next - end) * size_of(target.dtype)});
    }
  };
  for (const shard::TensorPlace& tensor : flat.tensors) {
    const std::int64_t first = tensor.range.first;
    clear_to(first);
    for (const Access& other : accesses.subspan(2)) {  // the other users of a tied weight
      const kernels::View view{pointer(other), DType::f32};
      context_.ops.run(stream, kernels::AddArgs{tensor.range.count, sum.offset(first),
                                                view.offset(first), sum.offset(first)});
    }
    if (target.dtype == DType::f32) {
      stream.copy_on_device(target.offset(first).data, sum.offset(first).data,
                            static_cast<std::size_t>(tensor.range.count) * sizeof(float));
    } else {
      context_.ops.run(stream, kernels::ConvertArgs{tensor.range.count, sum.offset(first),
                                                    target.offset(first)});
    }
    end = tensor.range.end();
  }
  clear_to(flat.elements);
}

void Program::synchronize(std::uint64_t sequence) {
  for (const auto& event : events_) event->synchronize(sequence);
}

void Program::poison(const std::exception_ptr& error) {
  for (const auto& event : events_) event->poison(error);
}

void Program::wait_for_batches(std::uint64_t sequence) {
  for (std::size_t index = 0; index < schedule_.tasks.size(); ++index) {
    if (schedule_.tasks[index].kind == TaskKind::copy_batch) events_[index]->synchronize(sequence);
  }
}

}  // namespace terrace::runtime
