#include "terrace/plan/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "plan/schedules.h"

namespace terrace::plan {
namespace {

using memory::MemoryPlan;
using memory::RegionId;
using memory::Tier;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// A schedule written down task by task.
struct Draft {
  Schedule schedule;
  MemoryPlan regions;

  RegionId region(std::uint64_t bytes = 100, Tier tier = Tier::host) {
    const RegionId id = regions.add("region", tier, bytes);
    regions.pack();
    return id;
  }
  int task(Lane lane, std::vector<Access> accesses, std::vector<Wait> waits = {},
           TaskKind kind = TaskKind::update) {
    Task task;
    task.kind = kind;
    task.lane = lane;
    task.first_access = static_cast<int>(schedule.accesses.size());
    task.access_count = static_cast<int>(accesses.size());
    task.first_wait = static_cast<int>(schedule.waits.size());
    task.wait_count = static_cast<int>(waits.size());
    schedule.accesses.insert(schedule.accesses.end(), accesses.begin(), accesses.end());
    schedule.waits.insert(schedule.waits.end(), waits.begin(), waits.end());
    schedule.tasks.push_back(task);
    return static_cast<int>(schedule.tasks.size()) - 1;
  }
  [[nodiscard]] std::vector<std::string> faults() const { return check(schedule, regions); }
};

Access reads(RegionId region, std::uint64_t offset = 0, std::uint64_t bytes = 100) {
  return {region, offset, bytes, false};
}
Access writes(RegionId region, std::uint64_t offset = 0, std::uint64_t bytes = 100) {
  return {region, offset, bytes, true};
}

TEST(Check, a_reader_that_does_not_wait_for_its_writer_is_found) {
  Draft draft;
  const RegionId region = draft.region();
  draft.task(Lane::compute, {writes(region)}, {{1, 1}});
  draft.task(Lane::d2h, {reads(region)});
  EXPECT_THAT(draft.faults(), Contains(HasSubstr("neither waits for the other")));
}

TEST(Check, a_writer_that_does_not_wait_for_the_reader_of_the_step_before_is_found) {
  Draft draft;
  const RegionId region = draft.region();
  const int writer = draft.task(Lane::compute, {writes(region)});
  draft.task(Lane::d2h, {reads(region)}, {{writer, 0}});
  EXPECT_THAT(draft.faults(), ElementsAre(HasSubstr("of the next step")));
}

TEST(Check, both_waits_make_it_safe) {
  Draft draft;
  const RegionId region = draft.region();
  draft.task(Lane::compute, {writes(region)}, {{1, 1}});
  draft.task(Lane::d2h, {reads(region)}, {{0, 0}});
  EXPECT_THAT(draft.faults(), IsEmpty());
}

TEST(Check, two_readers_need_no_order_and_two_parts_of_a_region_do_not_touch) {
  Draft draft;
  const RegionId region = draft.region();
  draft.task(Lane::compute, {reads(region)});
  draft.task(Lane::d2h, {reads(region)});
  const RegionId other = draft.region();
  draft.task(Lane::compute, {writes(other, 0, 50)});
  draft.task(Lane::d2h, {writes(other, 50, 50)});
  EXPECT_THAT(draft.faults(), IsEmpty());
}

TEST(Check, an_in_order_lane_needs_no_waits_within_itself) {
  Draft draft;
  const RegionId region = draft.region();
  draft.task(Lane::compute, {writes(region)});
  draft.task(Lane::compute, {reads(region)});
  EXPECT_THAT(draft.faults(), IsEmpty());
}

TEST(Check, the_disk_lanes_complete_in_any_order) {
  Draft draft;
  const RegionId region = draft.region();
  draft.task(Lane::disk_read, {writes(region)});
  draft.task(Lane::disk_read, {writes(region)});
  EXPECT_THAT(draft.faults(), Not(IsEmpty()));
}

TEST(Check, a_task_about_all_pages_has_its_disk_lane_for_itself) {
  Draft draft;
  const RegionId region = draft.region();
  draft.task(Lane::disk_write, {writes(region, 0, 50)});
  draft.task(Lane::disk_write, {writes(region, 50, 50)});
  draft.task(Lane::disk_write, {reads(region)}, {}, TaskKind::commit);
  EXPECT_THAT(draft.faults(), IsEmpty());
  infer_waits(draft.schedule, draft.regions);
  EXPECT_THAT(draft.schedule.waits, IsEmpty()) << "what the lane does anyway is not waited for";
}

TEST(Check, a_wait_through_another_lane_counts) {
  Draft draft;
  const RegionId region = draft.region();
  const RegionId other = draft.region();
  const int first = draft.task(Lane::h2d, {writes(region)}, {{2, 1}});
  const int middle = draft.task(Lane::compute, {writes(other)}, {{first, 0}, {2, 1}});
  draft.task(Lane::d2h, {reads(region), reads(other)}, {{middle, 0}});
  EXPECT_THAT(draft.faults(), IsEmpty());
}

TEST(Check, regions_that_share_memory_conflict) {
  Draft draft;
  const RegionId first = draft.regions.add("first slot", Tier::device, 100);
  const RegionId second = draft.regions.add("second slot", Tier::device, 100);
  draft.regions.use(first, 0);
  draft.regions.use(second, 1);
  draft.regions.pack();
  ASSERT_EQ(draft.regions.region(first).offset, draft.regions.region(second).offset);
  draft.task(Lane::compute, {writes(first)});
  draft.task(Lane::h2d, {writes(second)});
  EXPECT_THAT(draft.faults(), Not(IsEmpty()));
  infer_waits(draft.schedule, draft.regions);
  EXPECT_THAT(draft.faults(), IsEmpty());
}

TEST(Check, a_wait_for_what_comes_later_is_found) {
  Draft draft;
  draft.task(Lane::compute, {}, {{1, 0}});
  draft.task(Lane::h2d, {});
  EXPECT_THAT(draft.faults(), ElementsAre(HasSubstr("never comes")));
}

TEST(Check, an_access_beyond_its_region_is_found) {
  Draft draft;
  draft.task(Lane::compute, {reads(draft.region(), 90, 11)});
  EXPECT_THAT(draft.faults(), ElementsAre(HasSubstr("beyond its region")));
}

TEST(Check, a_slot_that_is_reused_before_its_last_reader_is_found) {
  Draft draft;
  const RegionId first = draft.regions.add("first slot", Tier::device, 100);
  const RegionId second = draft.regions.add("second slot", Tier::device, 100);
  draft.regions.use(first, 0);
  draft.regions.use(second, 1);
  draft.regions.pack();
  draft.task(Lane::compute, {writes(first)});
  draft.task(Lane::compute, {writes(second)});
  EXPECT_THAT(draft.faults(), IsEmpty());
  draft.task(Lane::compute, {reads(first)});  // in order, and yet it reads what the second wrote
  EXPECT_THAT(draft.faults(),
              ElementsAre("\"first slot\" and \"second slot\" share bytes [0, 100) of the device "
                          "tier, and both are leased at task 1 (update)",
                          "the device tier has 8192 bytes leased at once at task 1 (update), but "
                          "4096 bytes are planned for it"));
}

TEST(Check, more_bytes_leased_at_once_than_planned_are_found) {
  constexpr std::uint64_t kPage = MemoryPlan::kAlignmentBytes;
  Draft draft;
  draft.regions.add("state", Tier::host, kPage);
  const RegionId slots[] = {draft.regions.add("slot", Tier::host, 2 * kPage - 5),
                            draft.regions.add("slot", Tier::host, 2 * kPage),
                            draft.regions.add("slot", Tier::host, 3 * kPage)};
  for (int task = 0; task < 3; ++task) draft.regions.use(slots[task], task);
  draft.regions.use(slots[1], 2);
  draft.regions.pack();
  draft.task(Lane::compute, {writes(slots[0])});
  draft.task(Lane::compute, {writes(slots[1])});
  draft.task(Lane::compute, {reads(slots[1]), writes(slots[2])});
  EXPECT_THAT(draft.faults(), IsEmpty());
  const TierBytes peak = peak_bytes(draft.schedule, draft.regions);
  EXPECT_THAT(peak, ElementsAre(0, 6 * kPage, 0));
  EXPECT_EQ(draft.regions.bytes(Tier::host), peak[Tier::host]);
  EXPECT_THAT(check(draft.schedule, draft.regions, {0, 5 * kPage, 0}),
              ElementsAre("the host tier has 24576 bytes leased at once at task 2 (update), but "
                          "20480 bytes are planned for it"));
}

TEST(Check, a_region_that_lies_beyond_the_planned_bytes_is_found) {
  constexpr std::uint64_t kPage = MemoryPlan::kAlignmentBytes;
  Draft draft;
  const RegionId small = draft.regions.add("small", Tier::device, kPage);
  const RegionId held = draft.regions.add("held", Tier::device, kPage);
  const RegionId large = draft.regions.add("large", Tier::device, 2 * kPage);
  for (const RegionId region : {small, held}) draft.regions.use(region, 0);
  for (const RegionId region : {held, large}) draft.regions.use(region, 1);
  draft.regions.pack();
  draft.task(Lane::compute, {writes(small), writes(held)});
  draft.task(Lane::compute, {reads(held), writes(large)});
  EXPECT_THAT(draft.faults(), IsEmpty());
  const TierBytes peak = peak_bytes(draft.schedule, draft.regions);
  ASSERT_LT(peak[Tier::device], draft.regions.bytes(Tier::device)) << "the packing leaves a hole";
  EXPECT_THAT(check(draft.schedule, draft.regions, peak),
              ElementsAre("\"large\" lies at bytes [8192, 16384) of the device tier, but 12288 "
                          "bytes are planned for it"));
}

/// Tasks on random lanes that touch random parts of a few regions, some of which share memory. A
/// transient region is touched within its lifetime only.
Draft random_draft(std::mt19937& random) {
  Draft draft;
  const int regions = 2 + static_cast<int>(random() % 4);
  const int tasks = 3 + static_cast<int>(random() % 12);
  for (int i = 0; i < regions; ++i) {
    const RegionId id =
        draft.regions.add("region", static_cast<Tier>(random() % 2), 1 + random() % 6000);
    if (random() % 2 == 0) continue;
    const auto first = static_cast<std::int64_t>(random() % static_cast<unsigned>(tasks));
    draft.regions.use(id, first);
    draft.regions.use(id, first + static_cast<std::int64_t>(random() % 4));
  }
  draft.regions.pack();
  for (int i = 0; i < tasks; ++i) {
    std::vector<RegionId> live;
    for (int index = 0; index < regions; ++index) {
      const memory::Region& region = draft.regions.region(RegionId(index));
      const bool lives = region.persistent() || (region.first_use <= i && i <= region.last_use);
      if (lives) live.push_back(RegionId(index));
    }
    std::vector<Access> accesses;
    for (auto n = random() % 3; n < 3 && !live.empty(); ++n) {
      const RegionId region = live[random() % live.size()];
      const std::uint64_t bytes = draft.regions.region(region).bytes;
      const std::uint64_t offset = random() % bytes;
      accesses.push_back({region, offset, 1 + random() % (bytes - offset), random() % 2 == 0});
    }
    const auto lane = static_cast<Lane>(random() % kLanes);
    const bool alone = !completes_in_order(lane) && random() % 4 == 0;
    draft.task(lane, std::move(accesses), {}, alone ? TaskKind::commit : TaskKind::update);
  }
  return draft;
}

TEST(InferWaits, no_run_of_a_random_schedule_goes_wrong_and_the_checker_agrees) {
  constexpr unsigned kSeed = 20'260'202;
  std::mt19937 random(kSeed);
  int wrong_without_waits = 0;
  for (unsigned round = 0; round < 150; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << ", round " << round);
    Draft draft = random_draft(random);
    wrong_without_waits += RandomRun(draft.schedule, draft.regions).goes_wrong(3, round) ? 1 : 0;
    infer_waits(draft.schedule, draft.regions);
    ASSERT_THAT(draft.faults(), IsEmpty());
    for (unsigned order = 0; order < 4; ++order) {
      ASSERT_FALSE(RandomRun(draft.schedule, draft.regions).goes_wrong(3, 4 * round + order));
    }
  }
  EXPECT_GT(wrong_without_waits, 75) << "the runs can tell a wrong schedule from a right one";
}

TEST(InferWaits, every_wait_of_a_random_schedule_is_needed) {
  constexpr unsigned kSeed = 20'260'203;
  std::mt19937 random(kSeed);
  int waits = 0;
  int implied = 0;
  for (int round = 0; round < 150; ++round) {
    Draft draft = random_draft(random);
    infer_waits(draft.schedule, draft.regions);
    for (int wait = 0; wait < static_cast<int>(draft.schedule.waits.size()); ++wait) {
      ++waits;
      implied += check(without_wait(draft.schedule, wait), draft.regions).empty() ? 1 : 0;
    }
  }
  EXPECT_GT(waits, 1000);
  EXPECT_EQ(implied, 0) << "of " << waits;
}

/// `schedule` without some of its waits and with others, which lead to earlier tasks of this step
/// or to any of the last one, so that it is never stuck.
Schedule with_other_waits(Schedule schedule, std::mt19937& random) {
  for (auto wait = static_cast<int>(schedule.waits.size()) - 1; wait >= 0; --wait) {
    if (random() % 4 == 0) schedule = without_wait(schedule, wait);
  }
  const auto tasks = static_cast<unsigned>(schedule.tasks.size());
  for (unsigned added = 0; added < tasks; ++added) {
    const auto task = static_cast<int>(random() % tasks);
    const bool this_step = task > 0 && random() % 2 == 0;
    const unsigned others = this_step ? static_cast<unsigned>(task) : tasks;
    const Wait wait{static_cast<int>(random() % others), this_step ? 0 : 1};
    schedule = with_waits(schedule, task, {&wait, 1});
  }
  return schedule;
}

TEST(Check, passes_a_random_schedule_when_no_run_of_it_goes_wrong_and_only_then) {
  constexpr unsigned kSeed = 20'260'204;
  std::mt19937 random(kSeed);
  int safe = 0;
  int unsafe = 0;
  int gone_wrong = 0;
  for (unsigned round = 0; round < 200; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << ", round " << round);
    Draft draft = random_draft(random);
    infer_waits(draft.schedule, draft.regions);
    const Schedule other = with_other_waits(draft.schedule, random);
    const bool passes = check(other, draft.regions).empty();
    bool wrong = false;
    for (unsigned order = 0; order < 30 && !wrong; ++order) {
      wrong = RandomRun(other, draft.regions).goes_wrong(3, 30 * round + order);
    }
    ASSERT_FALSE(passes && wrong);
    ++(passes ? safe : unsafe);
    gone_wrong += wrong ? 1 : 0;
  }
  EXPECT_GT(safe, 20);
  EXPECT_GT(unsafe, 20);
  EXPECT_GT(gone_wrong, unsafe * 9 / 10) << "of " << unsafe << " that the check finds fault with";
}

/// A step in which each of `pages` is read from the disk by a task of its own, those that `touched`
/// names are then read by one computation, and later written by a copy to the device.
Draft pages_read_one_by_one(int pages, const std::vector<int>& touched) {
  constexpr std::uint64_t kPage = 100;
  Draft draft;
  const RegionId region = draft.region(kPage * static_cast<std::uint64_t>(pages));
  const auto page = [&](int number, bool write) {
    return Access{region, kPage * static_cast<std::uint64_t>(number), kPage, write};
  };
  for (int number = 0; number < pages; ++number) {
    draft.task(Lane::disk_read, {page(number, true)});
  }
  std::vector<Access> read, written;
  for (const int number : touched) {
    read.push_back(page(number, false));
    written.push_back(page(number, true));
  }
  draft.task(Lane::compute, read);
  draft.task(Lane::h2d, written);
  infer_waits(draft.schedule, draft.regions);
  return draft;
}

TEST(InferWaits, more_completed_runs_than_are_remembered_make_no_fault) {
  std::vector<int> every_second;
  for (int page = 0; page < 140; page += 2) every_second.push_back(page);
  EXPECT_THAT(pages_read_one_by_one(140, every_second).faults(), IsEmpty());
}

TEST(InferWaits, many_completed_tasks_in_one_run_leave_no_wait_that_is_not_needed) {
  std::vector<int> most;
  for (int page = 0; page < 100; ++page) most.push_back(page);
  const Draft draft = pages_read_one_by_one(140, most);
  EXPECT_THAT(draft.faults(), IsEmpty());
  for (int wait = 0; wait < static_cast<int>(draft.schedule.waits.size()); ++wait) {
    EXPECT_THAT(check(without_wait(draft.schedule, wait), draft.regions), Not(IsEmpty())) << wait;
  }
}

}  // namespace
}  // namespace terrace::plan
