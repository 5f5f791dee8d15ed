#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "core/sanitized.h"
#include "model/shapes.h"
#include "terrace/kernels/cpu.h"
#include "terrace/plan/plan.h"

namespace terrace::plan {

using memory::Tier;

/// A small model of odd sizes, its flats of more than one chunk.
class PlanTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRows = 2;
  static constexpr std::int64_t kSequence = 8;
  static constexpr std::int64_t kTokens = kRows * kSequence;

  explicit PlanTest(const model::Config& config = model::awkward_llama(true))
      : ops_(kernels::make_cpu_ops({})),
        model_(config, DType::bf16, *ops_),
        layout_(shard::shape_of(model_), 1) {}

  [[nodiscard]] static PlanRequest request() {
    PlanRequest request;
    request.micro_batch = {kRows, kSequence};
    request.gradient = DType::bf16;
    request.state = {{StateKind::master, 4}, {StateKind::exp_avg, 4}, {StateKind::exp_avg_sq, 4}};
    request.chunk_elements = 2048;
    return request;
  }
  [[nodiscard]] static PlanRequest split_request() {
    PlanRequest request = PlanTest::request();
    request.state[0].bytes = 2;
    request.update_reads_parameter = true;
    return request;
  }
  /// All that changes is on disk with two extents a page, and nothing is clipped.
  [[nodiscard]] static PlanRequest early_request() {
    PlanRequest request = PlanTest::request();
    request.may_update_before_decision = true;
    return request;
  }
  [[nodiscard]] Plan make(const PlanRequest& request) const {
    return make_plan(model_, layout_, request);
  }

  std::unique_ptr<kernels::Ops> ops_;
  model::Model model_;
  shard::Layout layout_;
};

/// The most bytes of a purpose that are live at once on a tier, by the regions' lifetimes.
inline std::uint64_t most_at_once(const Plan& plan, const std::string& purpose, Tier tier) {
  std::uint64_t most = 0;
  for (const memory::Region& at : plan.memory.regions()) {
    if (at.persistent()) continue;
    std::uint64_t now = 0;
    for (const memory::Region& region : plan.memory.regions()) {
      const bool live = region.first_use <= at.first_use && at.first_use <= region.last_use;
      if (live && region.purpose == purpose && region.tier == tier) now += region.bytes;
    }
    most = std::max(most, now);
  }
  return most;
}

/// What a step moves on `lane`.
inline std::uint64_t bytes_on(const Plan& plan, Lane lane) {
  std::uint64_t bytes = 0;
  for (const Task& task : plan.training.tasks) bytes += task.lane == lane ? task.bytes : 0;
  return bytes;
}

/// Every placement: each tier, half of the state on another one, and half of the parameters.
inline std::vector<Placement> placements() {
  std::vector<Placement> list;
  for (const Tier parameters : {Tier::device, Tier::host, Tier::disk}) {
    for (const Tier state : {Tier::device, Tier::host, Tier::disk}) {
      list.push_back({parameters, state, Tier::host, 0});
    }
    list.push_back({parameters, Tier::host, Tier::device, 0.5});
    list.push_back({parameters, Tier::disk, Tier::host, 0.5});
    list.push_back({parameters, Tier::disk, Tier::device, 0.5});
  }
  list.push_back({Tier::host, Tier::disk, Tier::host, 0, Tier::device, 0.5});
  list.push_back({Tier::host, Tier::host, Tier::device, 0.5, Tier::device, 0.5});
  list.push_back({Tier::disk, Tier::disk, Tier::host, 0, Tier::device, 0.5});
  list.push_back({Tier::disk, Tier::disk, Tier::host, 0, Tier::host, 0.5});
  return list;
}

/// Boundaries on the device, on the host, on disk, and half of them on the device, in turn.
inline void place_boundaries(PlanRequest& request, int number) {
  constexpr std::array kTiers = {Tier::device, Tier::host, Tier::disk, Tier::host, Tier::disk};
  request.placement.boundaries = kTiers[static_cast<std::size_t>(number) % kTiers.size()];
  request.placement.boundaries_resident = number % 5 > 2 ? 0.5 : 0;
}

inline std::string describe(const PlanRequest& request) {
  return ::testing::PrintToString(std::tuple(
      std::string(name_of(request.placement.parameters)),
      std::string(name_of(request.placement.state)), request.placement.state_resident,
      std::string(name_of(request.placement.resident_tier)), request.placement.parameters_resident,
      std::string(name_of(request.placement.parameters_resident_tier)),
      std::string(name_of(request.placement.boundaries)), request.placement.boundaries_resident,
      request.order == MicroBatchOrder::unit_major ? "unit-major" : "batch-major",
      request.micro_batches, request.recompute ? "recompute" : "keep", request.prefetch_units,
      request.chunk_elements, request.chunk_slots, request.update_reads_parameter));
}

/// All requests of the full product, handed to `function`; boundaries take their places in turn. A
/// sanitizer's build takes every fifth.
template <class Function>
void for_each_request(const PlanRequest& base, Function&& function) {
  PlanRequest request = base;
  int number = 0;
  for (const Placement& placement : placements()) {
    const bool all_on_disk = placement.parameters == Tier::disk && placement.state == Tier::disk &&
                             placement.state_resident == 0;
    if (base.may_update_before_decision && !all_on_disk) continue;  // the same plan
    for (const auto order : {MicroBatchOrder::batch_major, MicroBatchOrder::unit_major}) {
      for (const int micro_batches : {1, 3}) {
        for (const bool recompute : {true, false}) {
          for (const int prefetch : {0, 1, 3}) {
            for (const std::int64_t chunk : {2048, 1 << 16}) {
              request.placement = placement;
              place_boundaries(request, number + number / 6);  // else they would go with the chunk
              if (number++ % 5 != 0 && kSanitized) continue;
              request.order = order;
              request.micro_batches = micro_batches;
              request.recompute = recompute;
              request.prefetch_units = prefetch;
              request.chunk_elements = chunk;
              request.chunk_slots = chunk == 2048 ? 1 + prefetch : 2;
              function(request);
            }
          }
        }
      }
    }
  }
}

/// Every field's effect on the schedule is in some of these; each wait of each is tried.
inline std::vector<PlanRequest> requests_for_mutation(const PlanRequest& fp32,
                                                      const PlanRequest& split) {
  std::vector<PlanRequest> list;
  int number = 0;
  for (const PlanRequest& base : {fp32, split}) {
    for (const Placement& placement : placements()) {
      PlanRequest request = base;
      request.placement = placement;
      place_boundaries(request, number / 2);
      request.order = number % 2 == 0 ? MicroBatchOrder::batch_major : MicroBatchOrder::unit_major;
      request.micro_batches = 1 + number % 3 % 2 * 2;
      request.recompute = number % 4 < 2;
      request.prefetch_units = number % 3;
      request.chunk_elements = number % 5 == 0 ? 1 << 16 : 2048;
      request.chunk_slots = 1 + number % 3;
      list.push_back(request);
      ++number;
    }
  }
  constexpr Placement kAll{Tier::disk, Tier::disk, Tier::host, 0};
  constexpr Placement kHalf{Tier::disk, Tier::disk, Tier::host, 0, Tier::host, 0.5};
  for (const auto& [base, placement] :
       {std::pair(fp32, kAll), std::pair(split, kAll), std::pair(fp32, kHalf)}) {
    PlanRequest request = base;
    request.placement = placement;
    place_boundaries(request, number);
    request.may_update_before_decision = true;
    request.order = number % 2 == 0 ? MicroBatchOrder::batch_major : MicroBatchOrder::unit_major;
    request.prefetch_units = 1 + number % 2;
    request.chunk_slots = 2;
    list.push_back(request);
    ++number;
  }
  return list;
}

}  // namespace terrace::plan
