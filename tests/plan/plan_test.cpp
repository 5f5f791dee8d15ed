#include "terrace/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "memory/packing.h"
#include "model/shapes.h"
#include "plan/schedules.h"
#include "terrace/core/error.h"
#include "terrace/kernels/cpu.h"

namespace terrace::plan {
namespace {

using memory::Tier;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// A small model of odd sizes, its flats of more than one chunk.
class PlanTest : public testing::Test {
 protected:
  static constexpr std::int64_t kRows = 2;
  static constexpr std::int64_t kSequence = 8;
  static constexpr std::int64_t kTokens = kRows * kSequence;

  explicit PlanTest(const model::Config& config = model::awkward_llama(true))
      : log_([](LogLevel, std::string_view) {}),
        ops_(kernels::make_cpu_ops({}, log_)),
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

  Log log_;
  std::unique_ptr<kernels::Ops> ops_;
  model::Model model_;
  shard::Layout layout_;
};

/// Every placement: each tier, and half of the state on another one.
std::vector<Placement> placements() {
  std::vector<Placement> list;
  for (const Tier parameters : {Tier::device, Tier::host, Tier::disk}) {
    for (const Tier state : {Tier::device, Tier::host, Tier::disk}) {
      list.push_back({parameters, state, Tier::host, 0});
    }
    list.push_back({parameters, Tier::host, Tier::device, 0.5});
    list.push_back({parameters, Tier::disk, Tier::host, 0.5});
    list.push_back({parameters, Tier::disk, Tier::device, 0.5});
  }
  return list;
}

std::string describe(const PlanRequest& request) {
  return testing::PrintToString(std::tuple(
      std::string(name_of(request.placement.parameters)),
      std::string(name_of(request.placement.state)), request.placement.state_resident,
      std::string(name_of(request.placement.resident_tier)),
      request.order == MicroBatchOrder::unit_major ? "unit-major" : "batch-major",
      request.micro_batches, request.recompute ? "recompute" : "keep", request.prefetch_units,
      request.chunk_elements, request.chunk_slots, request.update_reads_parameter));
}

/// All requests of the full product, handed to `function`.
template <class Function>
void for_each_request(const PlanRequest& base, Function&& function) {
  PlanRequest request = base;
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

TEST_F(PlanTest, every_plan_of_the_product_is_packed_and_safe) {
  int plans = 0;
  for (const PlanRequest& base : {request(), split_request(), early_request()}) {
    for_each_request(base, [&](const PlanRequest& request) {
      if (HasFailure()) return;
      SCOPED_TRACE(describe(request));
      const Plan plan = make(request);
      EXPECT_EQ(plan.updates_before_decision, request.may_update_before_decision);
      memory::expect_packed(plan.memory);
      EXPECT_THAT(check(plan.training, plan.memory), IsEmpty());
      EXPECT_THAT(check(plan.evaluation, plan.memory), IsEmpty());
      ++plans;
    });
  }
  EXPECT_EQ(plans, (2 * 18 + 1) * 2 * 2 * 2 * 3 * 2);
}

/// What DESIGN's "Bytes" says a step moves, from the layout alone.
struct StepBytes {
  std::uint64_t h2d = 0, d2h = 0, disk_read = 0, disk_write = 0;
  std::uint64_t batches = 0;  ///< on the compute lane
};

StepBytes expected_bytes(const Plan& plan, const shard::Layout& layout, int units,
                         std::int64_t tokens) {
  const PlanRequest& request = plan.request;
  const auto micro_batches = static_cast<std::uint64_t>(request.micro_batches);
  const auto elements = static_cast<std::uint64_t>(layout.elements());
  constexpr std::uint64_t kParameter = 2;
  constexpr std::uint64_t kGradient = 2;
  std::uint64_t state = 0;
  for (const StateElement& element : request.state) {
    state += static_cast<std::uint64_t>(element.bytes);
  }
  std::uint64_t on_device = 0;
  std::uint64_t on_disk = 0;
  for (const Chunk& chunk : plan.chunks) {
    const auto count = static_cast<std::uint64_t>(chunk.range.count);
    if (chunk.tier == Tier::device) on_device += count;
    if (chunk.tier == Tier::disk) on_disk += count;
  }
  // Each unit is visited forward and backward, the head once; the embedding's backward reads none.
  std::uint64_t visited = 0;
  for (int unit = 0; unit < units; ++unit) {
    for (const int flat : layout.flats_of_unit(unit)) {
      visited += (unit > 0 && unit + 1 < units ? 2 : 1) *
                 static_cast<std::uint64_t>(layout.flat(flat).elements);
    }
  }
  if (request.order == MicroBatchOrder::batch_major) visited *= micro_batches;

  StepBytes bytes;
  const bool gradients_leave = on_device < elements;
  bytes.batches = micro_batches * static_cast<std::uint64_t>(tokens) * 2 * 4;
  bytes.d2h = micro_batches * 8 + (gradients_leave ? elements * kGradient : 0);
  bytes.disk_read = bytes.disk_write = on_disk * state;
  if (request.placement.parameters == Tier::device) {
    // Updated elsewhere, they come back; where the update reads them, from the host's copy of all.
    const std::uint64_t updated =
        request.update_reads_parameter && gradients_leave ? elements : elements - on_device;
    bytes.h2d += updated * kParameter;
  } else {
    bytes.h2d += visited * kParameter;
  }
  if (request.placement.parameters == Tier::disk) {
    bytes.disk_read += visited * kParameter;
    bytes.disk_write += elements * kParameter;
    if (request.update_reads_parameter) bytes.disk_read += elements * kParameter;
  }
  return bytes;
}

std::uint64_t bytes_of(const Plan& plan, TaskKind kind) {
  std::uint64_t bytes = 0;
  for (const Task& task : plan.training.tasks) bytes += task.kind == kind ? task.bytes : 0;
  return bytes;
}

std::uint64_t bytes_on(const Plan& plan, Lane lane) {
  std::uint64_t bytes = 0;
  for (const Task& task : plan.training.tasks) bytes += task.lane == lane ? task.bytes : 0;
  return bytes;
}

TEST_F(PlanTest, a_step_moves_what_the_closed_formula_says) {
  for (const PlanRequest& base : {request(), split_request(), early_request()}) {
    for_each_request(base, [&](const PlanRequest& request) {
      if (HasFailure()) return;
      SCOPED_TRACE(describe(request));
      const Plan plan = make(request);
      const StepBytes bytes =
          expected_bytes(plan, layout_, static_cast<int>(model_.units().size()), kTokens);
      EXPECT_EQ(bytes_on(plan, Lane::h2d), bytes.h2d);
      EXPECT_EQ(bytes_of(plan, TaskKind::copy_batch), bytes.batches);
      EXPECT_EQ(bytes_on(plan, Lane::d2h), bytes.d2h);
      EXPECT_EQ(bytes_on(plan, Lane::disk_read), bytes.disk_read);
      EXPECT_EQ(bytes_on(plan, Lane::disk_write), bytes.disk_write);
    });
  }
}

TEST_F(PlanTest, in_unit_major_order_accumulation_moves_no_more_parameters_and_gradients) {
  constexpr std::uint64_t kLoss = 8;
  for (const Placement& placement : placements()) {
    PlanRequest request = early_request();
    request.placement = placement;
    request.order = MicroBatchOrder::unit_major;
    SCOPED_TRACE(describe(request));
    std::vector<std::array<std::uint64_t, 4>> moved;
    for (const int micro_batches : {1, 2, 4, 8}) {
      request.micro_batches = micro_batches;
      const Plan plan = make(request);
      moved.push_back(
          {bytes_on(plan, Lane::h2d),
           bytes_on(plan, Lane::d2h) - static_cast<std::uint64_t>(micro_batches) * kLoss,
           bytes_on(plan, Lane::disk_read), bytes_on(plan, Lane::disk_write)});
    }
    EXPECT_THAT(moved, testing::Each(moved.front()));
    const bool leave = placement.state != Tier::device;
    EXPECT_EQ(moved.front()[1], leave ? static_cast<std::uint64_t>(layout_.elements()) * 2 : 0)
        << "2 bytes a parameter down, or none";
  }
}

/// Every field's effect on the schedule is in some of these; each wait of each is tried.
std::vector<PlanRequest> requests_for_mutation(const PlanRequest& fp32, const PlanRequest& split) {
  std::vector<PlanRequest> list;
  int number = 0;
  for (const PlanRequest& base : {fp32, split}) {
    for (const Placement& placement : placements()) {
      PlanRequest request = base;
      request.placement = placement;
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
  for (PlanRequest request : {fp32, split}) {
    request.placement = {Tier::disk, Tier::disk, Tier::host, 0};
    request.may_update_before_decision = true;
    request.order = number % 2 == 0 ? MicroBatchOrder::batch_major : MicroBatchOrder::unit_major;
    request.prefetch_units = 1 + number % 2;
    request.chunk_slots = 2;
    list.push_back(request);
    ++number;
  }
  return list;
}

TEST_F(PlanTest, the_check_fails_without_any_one_of_the_waits) {
  int waits = 0;
  for (const PlanRequest& request : requests_for_mutation(request(), split_request())) {
    SCOPED_TRACE(describe(request));
    const Plan plan = make(request);
    for (const Schedule* schedule : {&plan.training, &plan.evaluation}) {
      for (int wait = 0; wait < static_cast<int>(schedule->waits.size()); ++wait) {
        ++waits;
        EXPECT_THAT(check(without_wait(*schedule, wait), plan.memory), Not(IsEmpty()))
            << "wait " << wait << " for task "
            << schedule->waits[static_cast<std::size_t>(wait)].task << " is implied by others";
      }
    }
  }
  std::printf("%d waits removed, one at a time\n", waits);
  EXPECT_GT(waits, 1000);
}

TEST_F(PlanTest, the_check_finds_an_access_that_nobody_knew_of) {
  PlanRequest request = PlanTest::request();
  request.placement = {Tier::host, Tier::disk, Tier::host, 0.5};
  request.chunk_elements = 1 << 16;
  const Plan plan = make(request);
  const auto regions = plan.memory.regions();
  const auto scratch = std::ranges::find(regions, std::string("scratch"), &memory::Region::purpose);
  const memory::RegionId id(static_cast<int>(scratch - regions.begin()));
  // Each task of another lane in turn writes into the memory that the compute lane works in.
  std::array<int, kLanes> found{};
  for (std::size_t task = 0; task < plan.training.tasks.size(); ++task) {
    const Lane lane = plan.training.tasks[task].lane;
    if (lane == Lane::compute) continue;
    Schedule wrong = plan.training;
    add_access(wrong, task, {id, 0, scratch->bytes, true});
    if (!check(wrong, plan.memory).empty()) {
      ++found[static_cast<std::size_t>(lane)];
      continue;
    }
    // Some are ordered with all of the compute lane's tasks, such as the decision of the step.
    for (unsigned seed = 0; seed < 5; ++seed) {
      EXPECT_FALSE(RandomRun(wrong, plan.memory).goes_wrong(2, seed)) << "task " << task;
    }
  }
  for (const Lane lane :
       {Lane::h2d, Lane::d2h, Lane::disk_read, Lane::disk_write, Lane::optimizer}) {
    EXPECT_GT(found[static_cast<std::size_t>(lane)], 0) << name_of(lane);
  }
}

/// What a plan reserves of each tier.
TierBytes planned_bytes(const Plan& plan) {
  return {plan.memory.bytes(Tier::device), plan.memory.bytes(Tier::host),
          plan.memory.bytes(Tier::disk)};
}

TEST_F(PlanTest, the_check_finds_a_tier_that_is_planned_too_small) {
  for (const PlanRequest& request : requests_for_mutation(request(), split_request())) {
    if (request.chunk_elements == 2048 && request.micro_batches > 1) continue;  // the large ones
    SCOPED_TRACE(describe(request));
    const Plan plan = make(request);
    const TierBytes planned = planned_bytes(plan);
    const TierBytes peak = peak_bytes(plan.training, plan.memory);
    for (const Tier tier : {Tier::device, Tier::host, Tier::disk}) {
      const auto index = static_cast<std::size_t>(tier);
      ASSERT_LE(peak[index], planned[index]);
      if (planned[index] == 0) continue;
      TierBytes less = planned;
      less[index] -= memory::MemoryPlan::kAlignmentBytes;  // the smallest slot
      const std::vector<std::string> faults = check(plan.training, plan.memory, less);
      EXPECT_THAT(faults, Not(IsEmpty()));
      EXPECT_THAT(faults,
                  testing::Each(testing::AllOf(
                      HasSubstr("the " + std::string(name_of(tier)) + " tier"),
                      HasSubstr("but " + std::to_string(less[index]) + " bytes are planned"))));
    }
  }
}

/// `regions` packed anew as if nothing touched the one at `index` after its first task.
memory::MemoryPlan with_early_release(const memory::MemoryPlan& regions, std::size_t index) {
  memory::MemoryPlan other;
  for (const memory::Region& region : regions.regions()) {
    const bool early = other.regions().size() == index;
    const memory::RegionId id = other.add(region.purpose, region.tier, region.bytes);
    if (region.persistent()) continue;
    other.use(id, region.first_use);
    if (!early) other.use(id, region.last_use);
  }
  other.pack();
  return other;
}

/// Whether some task, one after the other, reads what was last written as another region: whole
/// pages, as no two regions share one at a time.
bool reads_what_is_not_its_own(const Schedule& schedule, const memory::MemoryPlan& regions) {
  constexpr std::uint64_t kPage = memory::MemoryPlan::kAlignmentBytes;
  std::array<std::vector<int>, memory::kTiers> owner;
  for (const Tier tier : {Tier::device, Tier::host, Tier::disk}) {
    owner[static_cast<std::size_t>(tier)].assign(regions.bytes(tier) / kPage, -1);
  }
  for (const Task& task : schedule.tasks) {
    for (const Access& access : schedule.accesses_of(task)) {
      const memory::Region& region = regions.region(access.region);
      if (access.bytes == 0) continue;
      const std::uint64_t begin = region.offset + access.offset;
      for (auto page = begin / kPage; page <= (begin + access.bytes - 1) / kPage; ++page) {
        int& now = owner[static_cast<std::size_t>(region.tier)][page];
        if (!access.write && now >= 0 && now != access.region.value) return true;
        if (access.write) now = access.region.value;
      }
    }
  }
  return false;
}

TEST_F(PlanTest, the_check_finds_a_slot_that_is_released_before_its_last_use) {
  int wrong = 0;
  for (const Placement& placement : {Placement{Tier::disk, Tier::disk, Tier::host, 0},
                                     Placement{Tier::host, Tier::disk, Tier::host, 0.5}}) {
    PlanRequest request = early_request();
    request.placement = placement;
    request.chunk_elements = 1 << 16;
    const Plan plan = make(request);
    EXPECT_FALSE(reads_what_is_not_its_own(plan.training, plan.memory));
    for (std::size_t index = 0; index < plan.memory.regions().size(); ++index) {
      if (plan.memory.regions()[index].persistent()) continue;
      const memory::MemoryPlan regions = with_early_release(plan.memory, index);
      Schedule schedule = plan.training;
      infer_waits(schedule, regions);  // all is in order, for what it is
      if (!reads_what_is_not_its_own(schedule, regions)) continue;
      ++wrong;
      EXPECT_THAT(check(schedule, regions), testing::Contains(HasSubstr("both are leased at")))
          << plan.memory.regions()[index].purpose;
    }
  }
  EXPECT_GT(wrong, 5) << "a release too early mostly gives another region the memory";
}

TEST_F(PlanTest, the_slots_of_a_plan_with_one_fewer_do_not_hold_the_schedule) {
  PlanRequest request = PlanTest::request();
  request.placement = {Tier::host, Tier::disk, Tier::host, 0};
  request.chunk_slots = 3;
  const Plan plan = make(request);
  --request.chunk_slots;
  const TierBytes fewer = planned_bytes(make(request));
  const std::uint64_t peak = peak_bytes(plan.training, plan.memory)[1];
  EXPECT_THAT(check(plan.training, plan.memory, fewer),
              testing::ElementsAre(testing::AllOf(
                  HasSubstr("the host tier has " + std::to_string(peak) + " bytes leased at once"),
                  HasSubstr("but " + std::to_string(fewer[1]) + " bytes are planned"))));
}

TEST_F(PlanTest, random_runs_of_real_plans_never_go_wrong) {
  constexpr unsigned kSeed = 20'260'205;
  unsigned seed = kSeed;
  for (const PlanRequest& request : requests_for_mutation(request(), split_request())) {
    if (request.chunk_elements == 2048 && request.micro_batches > 1) continue;  // the large ones
    SCOPED_TRACE(describe(request) + ", seed " + std::to_string(++seed));
    const Plan plan = make(request);
    ASSERT_FALSE(RandomRun(plan.training, plan.memory).goes_wrong(2, seed));
  }
}

TEST_F(PlanTest, chunks_cover_each_flat_once_in_order_and_the_resident_ones_come_first) {
  PlanRequest request = PlanTest::request();
  request.placement = {Tier::device, Tier::disk, Tier::host, 0.5};
  const Plan plan = make(request);
  int flat = 0;
  std::int64_t next = 0;
  std::int64_t resident = 0;
  bool left = false;
  for (const Chunk& chunk : plan.chunks) {
    if (next == layout_.flat(flat).elements) {
      ++flat;
      next = 0;
    }
    EXPECT_EQ(chunk.flat, flat);
    EXPECT_EQ(chunk.range.first, next);
    EXPECT_LE(chunk.range.count, request.chunk_elements);
    next = chunk.range.end();
    left = left || chunk.tier == Tier::disk;
    EXPECT_EQ(chunk.tier, left ? Tier::disk : Tier::host);
    if (!left) resident += chunk.range.count;
  }
  EXPECT_EQ(next, layout_.flats().back().elements);
  EXPECT_EQ(flat + 1, static_cast<int>(layout_.flats().size()));
  const std::int64_t half = layout_.elements() / 2;
  EXPECT_LE(resident, half);
  EXPECT_GT(resident, half - request.chunk_elements);
}

/// The most bytes of a purpose that are live at once on a tier, by the regions' lifetimes.
std::uint64_t most_at_once(const Plan& plan, const std::string& purpose, Tier tier) {
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

class UntiedPlanTest : public PlanTest {
 protected:
  UntiedPlanTest() : PlanTest(model::awkward_llama(false)) {}
};

TEST_F(UntiedPlanTest, slots_of_parameters_and_gradients_are_whole_flats_of_a_few_units) {
  std::vector<std::uint64_t> elements;  // by unit
  for (int unit = 0; unit < static_cast<int>(model_.units().size()); ++unit) {
    elements.push_back(0);
    for (const int flat : layout_.flats_of_unit(unit)) {
      elements.back() += static_cast<std::uint64_t>(layout_.flat(flat).elements);
    }
  }
  const std::uint64_t largest = *std::ranges::max_element(elements);
  PlanRequest request = early_request();
  request.placement = {Tier::disk, Tier::disk, Tier::host, 0};
  for (const int prefetch : {0, 1, 2}) {
    SCOPED_TRACE(prefetch);
    request.prefetch_units = prefetch;
    std::vector<std::vector<std::uint64_t>> by_chunk;
    for (const std::int64_t chunk : {2048, 1 << 16}) {
      request.chunk_elements = chunk;
      const Plan plan = make(request);
      const auto units = static_cast<std::uint64_t>(prefetch) + 1;
      by_chunk.push_back({most_at_once(plan, "gradient sums", Tier::device) / 4,
                          most_at_once(plan, "parameter slots", Tier::device) / 2,
                          most_at_once(plan, "gradient slots", Tier::device) / 2,
                          most_at_once(plan, "gradient slots", Tier::host) / 2});
      const std::vector<std::uint64_t>& held = by_chunk.back();
      EXPECT_EQ(held[0], largest) << "of one unit";
      EXPECT_THAT(held[1], testing::AllOf(testing::Ge(largest), testing::Le(units * largest)));
      for (const std::uint64_t gradients : {held[2], held[3]}) {
        EXPECT_THAT(gradients, testing::AllOf(testing::Ge(largest), testing::Le(2 * largest)));
      }
      // Whole blocks: a page more for each flat.
      const std::uint64_t read = most_at_once(plan, "parameter slots", Tier::host);
      EXPECT_LE(read, 2 * (largest * 2 + 4096 * layout_.flats().size()));
      EXPECT_GE(read, largest * 2);
    }
    EXPECT_EQ(by_chunk[0], by_chunk[1]) << "the chunk does not change them";
  }
}

TEST_F(PlanTest, an_update_before_the_decision_drops_gradients_and_holds_the_next_step_back) {
  PlanRequest request = early_request();
  request.placement = {Tier::disk, Tier::disk, Tier::host, 0};
  const Plan early = make(request);
  request.may_update_before_decision = false;
  const Plan late = make(request);
  const auto elements = static_cast<std::uint64_t>(layout_.elements());
  EXPECT_LT(early.memory.bytes(Tier::host), late.memory.bytes(Tier::host) - elements * 2 / 2)
      << "of the gradients, of two bytes an element, no more than the largest flats are held";

  // Each chunk's update comes right behind its gradient's norm: before the decision and before the
  // backward of the units below.
  const auto& tasks = early.training.tasks;
  const auto position = [&](auto&& matches) {
    return std::ranges::find_if(tasks, matches) - tasks.begin();
  };
  const auto decided = position([](const Task& task) { return task.kind == TaskKind::decide; });
  const auto settled = position([](const Task& task) { return task.kind == TaskKind::settle; });
  EXPECT_EQ(settled, decided + 1);
  for (std::size_t chunk = 0; chunk < early.chunks.size(); ++chunk) {
    const auto updated = position([&](const Task& task) {
      return task.kind == TaskKind::update && task.chunk == static_cast<int>(chunk);
    });
    const int unit = layout_.flat(early.chunks[chunk].flat).unit;
    const auto below = position(
        [&](const Task& task) { return task.kind == TaskKind::backward && task.unit == unit - 1; });
    EXPECT_LT(updated, decided);
    if (unit > 0) {
      EXPECT_LT(updated, below);
    }
  }
  // What the next step reads may be dropped until this one is settled.
  const auto waits_for_it = [&](const Task& task) {
    const Wait wait{static_cast<int>(settled), 1};
    return std::ranges::count(early.training.waits_of(task), wait) > 0;
  };
  const auto first_read =
      position([](const Task& task) { return task.kind == TaskKind::read_parameter; });
  EXPECT_TRUE(waits_for_it(tasks[static_cast<std::size_t>(first_read)]));
}

TEST_F(PlanTest, a_step_is_committed_and_pages_have_two_extents_when_all_it_changes_is_on_disk) {
  auto committed = [&](PlanRequest request, const Placement& placement) {
    request.placement = placement;
    const Plan plan = make(request);
    EXPECT_EQ(plan.copies(Tier::disk), plan.commits_every_step ? 2 : 1);
    EXPECT_EQ(plan.copies(Tier::host), 1);
    EXPECT_EQ(std::ranges::count(plan.training.tasks, TaskKind::commit, &Task::kind),
              plan.commits_every_step ? 1 : 0);
    return plan.commits_every_step;
  };
  const Placement all_on_disk{Tier::disk, Tier::disk, Tier::host, 0};
  const Placement state_on_disk{Tier::host, Tier::disk, Tier::host, 0};
  EXPECT_TRUE(committed(request(), all_on_disk));
  EXPECT_TRUE(committed(request(), state_on_disk)) << "the parameter follows from the master";
  EXPECT_FALSE(committed(split_request(), state_on_disk)) << "half the master is the parameter";
  EXPECT_TRUE(committed(split_request(), all_on_disk));
  EXPECT_FALSE(committed(request(), {Tier::device, Tier::disk, Tier::host, 0.5}));
  EXPECT_FALSE(committed(request(), {Tier::device, Tier::host, Tier::host, 0}));
  EXPECT_FALSE(committed(request(), {Tier::disk, Tier::host, Tier::host, 0}));
  PlanRequest one_extent = early_request();
  one_extent.disk_extents = 1;
  EXPECT_FALSE(committed(one_extent, all_on_disk));
  one_extent.placement = all_on_disk;
  EXPECT_FALSE(make(one_extent).updates_before_decision) << "nothing can be dropped";
}

TEST_F(PlanTest, recomputation_and_unit_major_order_change_the_memory_as_they_should) {
  PlanRequest request = PlanTest::request();
  request.micro_batches = 3;
  auto bytes_of = [&](const std::string& purpose) {
    std::uint64_t bytes = 0;
    for (const auto& row : make(request).memory.by_purpose()) {
      if (row.purpose == purpose) bytes += row.bytes;
    }
    return bytes;
  };
  const std::uint64_t shared = bytes_of("saved activations");
  const std::uint64_t inputs = bytes_of("block inputs");
  request.recompute = false;
  EXPECT_GT(bytes_of("saved activations"), shared);
  request.recompute = true;
  request.order = MicroBatchOrder::unit_major;
  EXPECT_EQ(bytes_of("block inputs"), 3 * inputs) << "those of all micro-batches are kept";
  EXPECT_EQ(bytes_of("saved activations"), shared) << "recomputed just before their use";
}

TEST_F(PlanTest, a_request_that_contradicts_itself_is_refused) {
  PlanRequest request = PlanTest::request();
  request.chunk_elements = 1000;
  try {
    (void)make(request);
    FAIL() << "a chunk of 1000 elements was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr("multiple of 2048"));
  }
  request = PlanTest::request();
  request.micro_batches = 0;
  EXPECT_THROW((void)make(request), Error);
}

}  // namespace
}  // namespace terrace::plan
