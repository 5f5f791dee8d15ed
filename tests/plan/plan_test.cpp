#include "terrace/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "plan/plans.h"
#include "terrace/core/error.h"

namespace terrace::plan {
namespace {

using ::testing::HasSubstr;

/// What DESIGN's "Bytes" says a step moves, from the layout alone.
struct StepBytes {
  std::uint64_t h2d = 0, d2h = 0, disk_read = 0, disk_write = 0;
  std::uint64_t batches = 0;  ///< on the compute lane
};

/// What is stored, and fetched again, of the inputs that each unit between the first and the head
/// has for each micro-batch; the last one's stays if it would be fetched at once.
std::uint64_t boundary_bytes(const PlanRequest& request, const model::Model& model) {
  if (request.placement.boundaries == Tier::device) return 0;
  const auto micro_batches = static_cast<std::uint64_t>(request.micro_batches);
  const std::uint64_t units = model.units().size() - (request.prefetch_units > 0 ? 3 : 2);
  const bool unit_major = request.order == MicroBatchOrder::unit_major;
  const std::uint64_t kept = unit_major ? units * micro_batches : units;
  const auto staying =
      static_cast<std::uint64_t>(request.placement.boundaries_resident * static_cast<double>(kept));
  return (kept - staying) * (unit_major ? 1 : micro_batches) *
         static_cast<std::uint64_t>(request.micro_batch.tokens() * model.config().hidden_size) * 2;
}

StepBytes expected_bytes(const Plan& plan, const shard::Layout& layout, const model::Model& model) {
  const auto units = static_cast<int>(model.units().size());
  const PlanRequest& request = plan.request;
  const auto micro_batches = static_cast<std::uint64_t>(request.micro_batches);
  const auto elements = static_cast<std::uint64_t>(layout.elements());
  constexpr std::uint64_t kParameter = 2;
  constexpr std::uint64_t kGradient = 2;
  std::uint64_t state = 0;
  for (const StateElement& element : request.state) {
    state += static_cast<std::uint64_t>(element.bytes);
  }
  std::uint64_t on_disk = 0;
  std::vector<std::uint64_t> updated_elsewhere(layout.flats().size(), 0);  // than on the device
  for (const Chunk& chunk : plan.chunks) {
    const auto count = static_cast<std::uint64_t>(chunk.range.count);
    if (chunk.tier != Tier::device)
      updated_elsewhere[static_cast<std::size_t>(chunk.flat)] += count;
    if (chunk.tier == Tier::disk) on_disk += count;
  }
  // Each unit is visited forward and backward, the head once; the embedding's backward reads none.
  std::vector<std::uint64_t> visits(layout.flats().size(), 0);
  for (int unit = 0; unit < units; ++unit) {
    for (const int flat : layout.flats_of_unit(unit)) {
      visits[static_cast<std::size_t>(flat)] += unit > 0 && unit + 1 < units ? 2 : 1;
    }
  }
  const std::uint64_t passes =
      request.order == MicroBatchOrder::batch_major ? micro_batches : std::uint64_t{1};

  StepBytes bytes;
  const bool gradients_leave =
      std::ranges::any_of(updated_elsewhere, [](std::uint64_t count) { return count > 0; });
  const std::uint64_t boundaries = boundary_bytes(request, model);
  bytes.batches = micro_batches * static_cast<std::uint64_t>(request.micro_batch.tokens()) * 2 * 4;
  bytes.d2h = micro_batches * 8 + (gradients_leave ? elements * kGradient : 0) + boundaries;
  bytes.h2d = boundaries;
  const bool pass_on = request.placement.boundaries == Tier::disk;
  bytes.disk_read = bytes.disk_write = on_disk * state + (pass_on ? boundaries : 0);
  for (std::size_t flat = 0; flat < visits.size(); ++flat) {
    const auto size =
        static_cast<std::uint64_t>(layout.flat(static_cast<int>(flat)).elements) * kParameter;
    if (plan.parameter_tier[flat] == Tier::device) {
      // Updated elsewhere, they come back; where the update reads them, from the host's copy.
      bytes.h2d += request.update_reads_parameter && gradients_leave
                       ? size
                       : updated_elsewhere[flat] * kParameter;
      continue;
    }
    const std::uint64_t fetched = visits[flat] * passes * size;
    bytes.h2d += fetched;
    if (plan.parameter_tier[flat] != Tier::disk) continue;
    bytes.disk_read += fetched + (request.update_reads_parameter ? size : 0);
    bytes.disk_write += size;
  }
  return bytes;
}

std::uint64_t bytes_of(const Plan& plan, TaskKind kind) {
  std::uint64_t bytes = 0;
  for (const Task& task : plan.training.tasks) bytes += task.kind == kind ? task.bytes : 0;
  return bytes;
}

TEST_F(PlanTest, a_step_moves_what_the_closed_formula_says) {
  for (const PlanRequest& base : {request(), split_request(), early_request()}) {
    for_each_request(base, [&](const PlanRequest& request) {
      if (HasFailure()) return;
      SCOPED_TRACE(describe(request));
      const Plan plan = make(request);
      const StepBytes bytes = expected_bytes(plan, layout_, model_);
      EXPECT_EQ(bytes_of(plan, TaskKind::store_boundary), boundary_bytes(request, model_));
      EXPECT_EQ(bytes_of(plan, TaskKind::fetch_boundary), boundary_bytes(request, model_));
      const bool on_disk = request.placement.boundaries == Tier::disk;
      const std::uint64_t passed_on = on_disk ? boundary_bytes(request, model_) : 0;
      EXPECT_EQ(bytes_of(plan, TaskKind::write_boundary), passed_on);
      EXPECT_EQ(bytes_of(plan, TaskKind::read_boundary), passed_on);
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
    EXPECT_THAT(moved, ::testing::Each(moved.front()));
    const bool leave = placement.state != Tier::device;
    EXPECT_EQ(moved.front()[1], leave ? static_cast<std::uint64_t>(layout_.elements()) * 2 : 0)
        << "2 bytes a parameter down, or none";
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

TEST_F(PlanTest, parameters_stay_resident_in_whole_flats_up_to_their_share) {
  PlanRequest request = PlanTest::request();
  const std::vector<int> order = resident_order(model_, layout_);
  std::vector<double> shares = {0, 0.2, 0.5, 0.8, 1};
  for (const double share : shares) {
    request.placement = {Tier::disk, Tier::disk, Tier::host, 0, Tier::host, share};
    const Plan plan = make(request);
    const auto limit = static_cast<std::int64_t>(share * static_cast<double>(layout_.elements()));
    std::int64_t resident = 0;
    bool left = false;
    for (const int flat : order) {
      const std::int64_t elements = layout_.flat(flat).elements;
      left = left || resident + elements > limit;
      if (!left) resident += elements;
      EXPECT_EQ(plan.parameter_tier[static_cast<std::size_t>(flat)], left ? Tier::disk : Tier::host)
          << "flat " << flat << ", share " << share;
    }
    EXPECT_EQ(plan.kept_bytes(StateKind::parameter),
              static_cast<std::uint64_t>(layout_.elements()) * 2);
    std::uint64_t in_ram = 0;
    for (const memory::Region& region : plan.memory.regions()) {
      if (region.purpose == "parameters" && region.tier == Tier::host) in_ram += region.bytes;
    }
    EXPECT_EQ(in_ram, static_cast<std::uint64_t>(resident) * 2);
  }
}

TEST_F(PlanTest, what_is_fetched_twice_a_step_is_resident_first) {
  // Tied: the embedding is read at both ends, blocks forward and backward, the last norm once.
  const std::vector<int> order = resident_order(model_, layout_);
  EXPECT_EQ(order.front(), 0);
  EXPECT_TRUE(layout_.flat(0).tied);
  const int head = static_cast<int>(model_.units().size()) - 1;
  EXPECT_EQ(layout_.flat(order.back()).unit, head);
  EXPECT_TRUE(std::ranges::is_sorted(order)) << "else in forward order";
}

TEST_F(PlanTest, a_resident_tier_that_is_no_faster_is_refused) {
  PlanRequest request = PlanTest::request();
  for (const Tier resident : {Tier::host, Tier::disk}) {
    request.placement = {Tier::host, Tier::host, Tier::host, 0, resident, 0.5};
    EXPECT_THROW((void)make(request), Error);
  }
}

class UntiedPlanTest : public PlanTest {
 protected:
  UntiedPlanTest() : PlanTest(model::awkward_llama(false)) {}
};

TEST_F(UntiedPlanTest, embedding_and_head_are_resident_last) {
  const std::vector<int> order = resident_order(model_, layout_);
  const int head = static_cast<int>(model_.units().size()) - 1;
  std::vector<int> units;
  for (const int flat : order) units.push_back(layout_.flat(flat).unit);
  const auto ends =
      std::ranges::find_if(units, [&](int unit) { return unit == 0 || unit == head; });
  EXPECT_EQ(*ends, 0);
  EXPECT_NE(ends, units.begin());
  EXPECT_TRUE(std::all_of(ends, units.end(), [&](int unit) { return unit == 0 || unit == head; }));
  EXPECT_EQ(units.back(), head);
}

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
      EXPECT_THAT(held[1],
                  ::testing::AllOf(::testing::Ge(largest), ::testing::Le(units * largest)));
      for (const std::uint64_t gradients : {held[2], held[3]}) {
        EXPECT_THAT(gradients,
                    ::testing::AllOf(::testing::Ge(largest), ::testing::Le(2 * largest)));
      }
      // Whole blocks: a page more for each flat.
      const std::uint64_t read = most_at_once(plan, "parameter slots", Tier::host);
      EXPECT_LE(read, 2 * (largest * 2 + 4096 * layout_.flats().size()));
      EXPECT_GE(read, largest * 2);
    }
    EXPECT_EQ(by_chunk[0], by_chunk[1]) << "the chunk does not change them";
  }
}

TEST_F(PlanTest, the_first_chunks_are_read_under_forward_and_backward) {
  PlanRequest request = PlanTest::request();
  request.chunk_slots = 3;
  for (const Tier parameters : {Tier::device, Tier::host}) {
    request.placement = {parameters, Tier::disk, Tier::host, 0};
    const Plan plan = make(request);
    int reads = 0;
    for (const Task& task : plan.training.tasks) {
      if (task.kind != TaskKind::read_chunk || ++reads > request.chunk_slots) continue;
      // Of its own step it waits for nothing; what it writes over is the step's before.
      for (const Wait& wait : plan.training.waits_of(task)) EXPECT_EQ(wait.steps_back, 1);
    }
    EXPECT_GT(reads, request.chunk_slots);
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

TEST_F(PlanTest, of_parameters_on_two_tiers_those_on_disk_alone_are_updated_early) {
  PlanRequest request = early_request();
  request.placement = {Tier::disk, Tier::disk, Tier::host, 0, Tier::host, 0.5};
  const Plan plan = make(request);
  ASSERT_TRUE(plan.updates_before_decision);
  const auto decided = std::ranges::find(plan.training.tasks, TaskKind::decide, &Task::kind);
  int early = 0;
  int late = 0;
  for (auto task = plan.training.tasks.begin(); task != plan.training.tasks.end(); ++task) {
    if (task->kind != TaskKind::update) continue;
    const auto flat = static_cast<std::size_t>(task->flat);
    const bool on_disk = plan.parameter_tier[flat] == Tier::disk;
    EXPECT_EQ(task < decided, on_disk);
    EXPECT_EQ(plan.memory.region(plan.gradient[flat]).persistent(), !on_disk);
    ++(on_disk ? early : late);
  }
  EXPECT_GT(early, 0);
  EXPECT_GT(late, 0);
  // Pages that are only written after the decision may be read while it is made.
  const auto settled = std::ranges::find(plan.training.tasks, TaskKind::settle, &Task::kind);
  const auto read = std::find_if(settled, plan.training.tasks.end(), [](const Task& task) {
    return task.kind == TaskKind::read_chunk;
  });
  ASSERT_NE(read, plan.training.tasks.end());
  for (const Wait& wait : plan.training.waits_of(*read)) {
    EXPECT_NE(plan.training.tasks[static_cast<std::size_t>(wait.task)].kind, TaskKind::settle);
  }
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
  const Placement some_in_ram{Tier::disk, Tier::disk, Tier::host, 0, Tier::host, 0.5};
  EXPECT_TRUE(committed(request(), some_in_ram));
  EXPECT_FALSE(committed(split_request(), some_in_ram));
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
