#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "pace.h"
#include "terrace/runtime/run_context.h"
#include "terrace/runtime/step.h"
#include "wait_causes.h"

namespace terrace::runtime {

/// A schedule bound to a run's memory: an event a task, and for each task of the stream lanes the
/// views that it is called with. A run of the schedule has a number, its *sequence*, counted from
/// 1; a task's event reaches that number when the task of that run is complete.
class Program {
 public:
  Program(const RunContext& context, const LaneOptions& options, const plan::Schedule& schedule);

  [[nodiscard]] const plan::Schedule& schedule() const { return schedule_; }
  [[nodiscard]] device::Event& event(int task) { return *events_[static_cast<std::size_t>(task)]; }
  [[nodiscard]] const RunContext& context() const { return context_; }
  /// Times of the run with this sequence; valid until kStepSlots runs later.
  [[nodiscard]] StepTimes& times(std::uint64_t sequence) { return times_[sequence % kStepSlots]; }

  /// Clears the times of the run; before any of its lanes is given it.
  void begin(std::uint64_t sequence) { times(sequence) = StepTimes{}; }
  /// Enqueues every task of the stream lanes (compute, h2d, d2h), in serial order, so that what a
  /// stream waits for is always queued before it. `loss_scale` multiplies the summed loss.
  void enqueue(std::uint64_t sequence, Step step, float loss_scale);
  /// Blocks until all tasks of the run are complete; throws the first error of any lane.
  void synchronize(std::uint64_t sequence);
  /// Makes everything that waits, or will, throw `error`.
  void poison(const std::exception_ptr& error);
  /// Blocks until the host batches of the run have been copied and may be overwritten.
  void wait_for_batches(std::uint64_t sequence);
  /// When the task, begun at `begin_us`, may be complete at the earliest: 0 where its lane is not
  /// held to a rate. By the lane's thread only, as the next two.
  [[nodiscard]] std::int64_t due(const plan::Task& task, std::int64_t begin_us);
  /// Sleeps until `due_us`, a value of `due` for the lane.
  void sleep_until(plan::Lane lane, std::int64_t due_us);
  /// Sleeps until the task may be complete.
  void hold(const plan::Task& task, std::int64_t begin_us) {
    sleep_until(task.lane, due(task, begin_us));
  }
  /// Overwrites what nobody uses after the task, if asked to; before its event is signalled.
  void overwrite_released(int task) {
    for (const std::span<std::byte> bytes : released_[static_cast<std::size_t>(task)]) {
      std::memset(bytes.data(), kReleasedByte, bytes.size());
    }
  }
  /// Keeps when the task of the run did its work, and records a span, if there is a trace. By its
  /// lane's thread, before its event is signalled.
  void record(const plan::Task& task, std::uint64_t sequence, Step step, std::int64_t begin_us,
              std::int64_t end_us);
  /// Finds out what the compute lane of a run that is complete waited for; into its `times`.
  void explain_waits(std::uint64_t sequence);

 private:
  struct Bound {
    model::Batch batch;
    model::UnitActivations activations;
    device::Pointer d_boundary;
    device::Pointer loss;
    device::Pointer position;
    device::Pointer logits;
    std::vector<kernels::View> weights;
    std::vector<model::GradientView> gradients;
  };

  /// Every float of such bytes is a NaN, and every index is out of any range.
  static constexpr int kReleasedByte = 0xFF;

  [[nodiscard]] TaskSpan& span(std::uint64_t sequence, std::size_t task) {
    return spans_[sequence % kStepSlots][task];
  }
  void bind(std::size_t index);
  void find_released();
  void bind_weights(const plan::Task& task, std::span<const plan::Access> accesses, Bound& bound);
  void bind_gradients(const plan::Task& task, std::span<const plan::Access> accesses, Bound& bound);
  [[nodiscard]] device::Pointer pointer(const plan::Access& access) const {
    return context_.memory.device(access.region, access.offset);
  }
  void run(const plan::Task& task, const Bound& bound, device::Stream& stream, float loss_scale);
  void round_gradient(const plan::Task& task, device::Stream& stream);

  RunContext context_;
  Trace* trace_;
  const plan::Schedule& schedule_;
  std::vector<std::unique_ptr<device::Event>> events_;
  std::vector<Bound> bound_;
  std::vector<std::vector<std::span<std::byte>>> released_;  ///< by task; none unless asked for
  std::array<StepTimes, kStepSlots> times_;
  std::array<std::vector<TaskSpan>, kStepSlots> spans_;  ///< by task
  WaitCauses causes_;
  std::array<Pace, plan::kLanes> paces_;              ///< each touched by its lane only
  std::array<std::int64_t, plan::kLanes> mark_us_{};  ///< each touched by its stream only
  /// Destroyed first: what is left in them when a run fails still writes to the others.
  std::array<std::unique_ptr<device::Stream>, plan::kLanes> streams_;
};

/// Whether the lane's tasks run on a device stream; the others have a host thread.
[[nodiscard]] constexpr bool is_stream(plan::Lane lane) {
  return lane == plan::Lane::compute || lane == plan::Lane::h2d || lane == plan::Lane::d2h;
}

}  // namespace terrace::runtime
