#include "terrace/memory/region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "memory/packing.h"

namespace terrace::memory {
namespace {

constexpr std::uint64_t kPage = MemoryPlan::kAlignmentBytes;

/// Regions of all tiers, sizes with nothing round about them, and of the RAM tiers some transient.
MemoryPlan random_plan(std::mt19937& random) {
  MemoryPlan plan;
  const int count = 1 + static_cast<int>(random() % 40);
  for (int i = 0; i < count; ++i) {
    const auto tier = static_cast<Tier>(random() % 3);
    const RegionId id = plan.add("purpose " + std::to_string(random() % 5), tier,
                                 random() % 4 == 0 ? 0 : random() % (5 * kPage));
    if (tier == Tier::disk || random() % 3 == 0) continue;
    const auto first = static_cast<std::int64_t>(random() % 50);
    plan.use(id, first);
    plan.use(id, first + static_cast<std::int64_t>(random() % 10));
  }
  plan.pack();
  return plan;
}

TEST(MemoryPlan, regions_that_live_together_never_share_a_byte) {
  constexpr unsigned kSeed = 20'260'201;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 300 && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", round " << round);
    expect_packed(random_plan(random));
  }
}

TEST(MemoryPlan, transients_that_follow_each_other_share_memory) {
  MemoryPlan plan;
  plan.add("weights", Tier::device, 3 * kPage);
  for (int i = 0; i < 10; ++i) {
    const RegionId id = plan.add("slot", Tier::device, 2 * kPage - 1);
    plan.use(id, 3 * i);
    plan.use(id, 3 * i + 2);
  }
  plan.pack();
  expect_packed(plan);
  EXPECT_EQ(plan.bytes(Tier::device), 5 * kPage) << "one slot for all ten";
  EXPECT_EQ(plan.bytes(Tier::device), peak_bytes(plan, Tier::device));
}

TEST(MemoryPlan, a_transient_fills_a_hole_that_another_left) {
  MemoryPlan plan;
  const RegionId first = plan.add("a", Tier::host, kPage);
  const RegionId second = plan.add("b", Tier::host, kPage);
  const RegionId third = plan.add("c", Tier::host, kPage);
  plan.use(first, 0);
  plan.use(second, 0);
  plan.use(second, 9);
  plan.use(third, 5);
  plan.pack();
  EXPECT_EQ(plan.region(third).offset, plan.region(first).offset);
  EXPECT_EQ(plan.bytes(Tier::host), 2 * kPage);
}

TEST(MemoryPlan, a_lifetime_reaches_from_the_first_use_to_the_last) {
  MemoryPlan plan;
  const RegionId id = plan.add("slot", Tier::host, 1);
  EXPECT_TRUE(plan.region(id).persistent());
  plan.use(id, 7);
  plan.use(id, 3);
  plan.use(id, 5);
  EXPECT_EQ(plan.region(id).first_use, 3);
  EXPECT_EQ(plan.region(id).last_use, 7);
}

TEST(MemoryPlan, the_table_names_purposes_in_order_and_adds_up) {
  MemoryPlan plan;
  plan.add("master", Tier::disk, kPage + 1);
  plan.add("weights", Tier::device, 10);
  plan.add("master", Tier::disk, kPage);
  const RegionId slot = plan.add("slot", Tier::device, kPage);
  plan.use(slot, 0);
  plan.pack();
  const std::vector<PurposeBytes> table = plan.by_purpose();
  ASSERT_EQ(table.size(), 3U);
  EXPECT_EQ(table[0].purpose, "master");
  EXPECT_EQ(table[0].bytes, 3 * kPage) << "whole pages";
  EXPECT_EQ(table[1].purpose, "weights");
  EXPECT_EQ(table[2].purpose, "slot");
  EXPECT_EQ(table[2].bytes, kPage);
}

TEST(MemoryPlan, the_table_tells_transients_apart_at_the_fullest_moment) {
  MemoryPlan plan;
  auto add = [&](const char* purpose, std::uint64_t pages, std::int64_t first, std::int64_t last) {
    const RegionId id = plan.add(purpose, Tier::host, pages * kPage);
    plan.use(id, first);
    plan.use(id, last);
  };
  add("early", 2, 0, 1);
  add("middle", 1, 0, 5);
  add("late", 3, 2, 5);  // does not fit where the first one was
  plan.pack();
  const std::vector<PurposeBytes> table = plan.by_purpose();
  ASSERT_EQ(table.size(), 3U);
  EXPECT_EQ(table[0].purpose, "middle");
  EXPECT_EQ(table[0].bytes, kPage);
  EXPECT_EQ(table[1].purpose, "late");
  EXPECT_EQ(table[1].bytes, 3 * kPage);
  EXPECT_EQ(table[2].purpose, "between slots");
  EXPECT_EQ(table[2].bytes, 2 * kPage);
}

TEST(MemoryPlan, packing_twice_gives_the_same_offsets) {
  std::mt19937 random(7);
  MemoryPlan plan = random_plan(random);
  std::vector<std::uint64_t> offsets;
  for (const Region& region : plan.regions()) offsets.push_back(region.offset);
  plan.pack();
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    EXPECT_EQ(plan.regions()[i].offset, offsets[i]);
  }
}

}  // namespace
}  // namespace terrace::memory
