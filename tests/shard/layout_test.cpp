#include "terrace/shard/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

namespace terrace::shard {
namespace {

using testing::ElementsAre;

std::int64_t of(const ModelShape& model, int parameter) {
  return model.parameters[static_cast<std::size_t>(parameter)].elements;
}

/// A model of random sizes whose last unit may use a weight of the first.
ModelShape random_model(std::mt19937& random) {
  ModelShape model;
  const int units = 1 + static_cast<int>(random() % 6);
  for (int u = 0; u < units; ++u) {
    model.units.emplace_back();
    const int count = 1 + static_cast<int>(random() % 5);
    for (int i = 0; i < count; ++i) {
      model.units.back().push_back(static_cast<int>(model.parameters.size()));
      model.parameters.push_back(
          {1 + static_cast<std::int64_t>(random() % 1000), random() % 2 == 0});
    }
  }
  if (units > 1 && random() % 2 == 0) model.units.back().push_back(0);
  return model;
}

/// Everything a layout promises, whatever the model.
void expect_lays_out(const ModelShape& model, int world_size, const Layout& layout) {
  std::vector<int> seen(model.parameters.size(), 0);
  int last_unit = 0;
  for (std::size_t f = 0; f < layout.flats().size(); ++f) {
    const Flat& flat = layout.flats()[f];
    EXPECT_EQ(flat.id, static_cast<int>(f));
    EXPECT_GE(flat.unit, last_unit) << "flats are in the order of their first use";
    last_unit = flat.unit;
    EXPECT_EQ(flat.elements % (kAlignmentElements * world_size), 0);
    std::int64_t next = 0;
    for (const TensorPlace& tensor : flat.tensors) {
      ++seen[static_cast<std::size_t>(tensor.parameter)];
      EXPECT_EQ(tensor.range.first % kAlignmentElements, 0);
      EXPECT_GE(tensor.range.first, next) << "tensors do not overlap";
      EXPECT_EQ(tensor.range.count, of(model, tensor.parameter));
      EXPECT_EQ(layout.place(tensor.parameter).flat, flat.id);
      EXPECT_EQ(layout.place(tensor.parameter).range, tensor.range);
      next = tensor.range.end();
    }
    EXPECT_GE(flat.elements, next);
  }
  EXPECT_THAT(seen, testing::Each(1)) << "each parameter lies in one flat, once";
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const auto flats = layout.flats_of_unit(static_cast<int>(u));
    EXPECT_TRUE(std::ranges::is_sorted(flats));
    for (const int parameter : model.units[u]) {
      EXPECT_EQ(std::ranges::count(flats, layout.place(parameter).flat), 1);
    }
  }
}

TEST(Layout, places_every_parameter_of_random_models_once_and_aligned) {
  constexpr unsigned kSeed = 20'260'131;
  std::mt19937 random(kSeed);
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  for (int round = 0; round < 200; ++round) {
    const ModelShape model = random_model(random);
    const int world_size = 1 + static_cast<int>(random() % 8);
    expect_lays_out(model, world_size, Layout(model, world_size));
    if (testing::Test::HasFailure()) break;
  }
}

TEST(Layout, ranks_shards_are_equal_aligned_and_cover_the_flat) {
  const ModelShape model{{{1000, true}, {10, false}}, {{0, 1}}};
  for (int world_size = 1; world_size <= 5; ++world_size) {
    const Layout layout(model, world_size);
    for (const Flat& flat : layout.flats()) {
      std::int64_t next = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const Range shard = layout.shard(flat.id, rank);
        EXPECT_EQ(shard.first, next);
        EXPECT_EQ(shard.first % kAlignmentElements, 0);
        EXPECT_EQ(shard.count * world_size, flat.elements);
        next = shard.end();
      }
      EXPECT_EQ(next, flat.elements);
    }
  }
}

TEST(Layout, matrices_decay_apart_from_norms_and_biases_unless_all_do) {
  const ModelShape model{{{128, true}, {128, false}, {256, true}}, {{0, 1, 2}}};
  const Layout layout(model, 1);
  ASSERT_EQ(layout.flats().size(), 2U);
  EXPECT_TRUE(layout.flat(layout.place(0).flat).decayed);
  EXPECT_FALSE(layout.flat(layout.place(1).flat).decayed);
  EXPECT_EQ(layout.place(2).flat, layout.place(0).flat);
  EXPECT_EQ(layout.elements(), 512);

  const Layout all(model, 1, true);
  ASSERT_EQ(all.flats().size(), 1U);
  EXPECT_TRUE(all.flats()[0].decayed);
}

TEST(Layout, a_tied_weight_is_a_flat_of_its_own_that_both_its_units_need) {
  const ModelShape model{{{512, true}, {64, true}, {64, false}}, {{0}, {1}, {2, 0}}};
  const Layout layout(model, 1);
  const Flat& tied = layout.flat(layout.place(0).flat);
  EXPECT_TRUE(tied.tied);
  EXPECT_EQ(tied.unit, 0);
  EXPECT_EQ(tied.tensors.size(), 1U);
  EXPECT_THAT(layout.flats_of_unit(0), ElementsAre(tied.id));
  EXPECT_THAT(layout.flats_of_unit(2), ElementsAre(tied.id, layout.place(2).flat));
  EXPECT_FALSE(layout.flat(layout.place(1).flat).tied);
}

TEST(Layout, pads_the_tensors_and_the_end_to_whole_alignments) {
  const ModelShape model{{{1, true}, {129, true}}, {{0, 1}}};
  const Layout layout(model, 2);
  EXPECT_EQ(layout.place(1).range, (Range{128, 129}));
  EXPECT_EQ(layout.elements(), 512) << "128 + 129 rounded up to a multiple of 2 x 128";
}

}  // namespace
}  // namespace terrace::shard
