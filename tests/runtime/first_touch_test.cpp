#include "terrace/runtime/first_touch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/made_up_machine.h"
#include "runtime/rig.h"

namespace terrace::runtime::testing {
namespace {
using train::testing::read;
using train::testing::Result;
using train::testing::Row;
using train::testing::rows;
using train::testing::small_llama;
using train::testing::text;
using train::testing::train_run;
using train::testing::TrainingTest;
using train::testing::write;
using train::testing::write_model;

using memory::Tier;
using terrace::testing::MadeUpMachine;
using ::testing::ElementsAreArray;

/// Wide enough that chunks have several ranges of the optimizer step's.
model::Config wide_llama() {
  model::Config config = small_llama(true);
  config.vocab_size = 300;
  config.hidden_size = 126;
  config.intermediate_size = 250;
  return config;
}

/// Whether the pages of `bytes` are in RAM.
std::vector<bool> resident_pages(std::span<std::byte> bytes) {
  const auto page = static_cast<std::size_t>(getpagesize());
  const std::size_t into = reinterpret_cast<std::uintptr_t>(bytes.data()) % page;
  std::vector<unsigned char> found((into + bytes.size() + page - 1) / page);
  EXPECT_EQ(mincore(bytes.data() - into, into + bytes.size(), found.data()), 0);
  std::vector<bool> resident;
  for (const unsigned char flags : found) resident.push_back((flags & 1) != 0);
  return resident;
}

class FirstTouch : public TrainingTest {
 protected:
  FirstTouch() { write_model(folder_ / "model", wide_llama()); }

  [[nodiscard]] config::Settings wide_settings(const std::string& output,
                                               config::Placement state) const {
    config::Settings result = settings(output);
    result.ranks.threads = 2;
    result.placement.chunk_elements = 1 << 17;
    result.placement.optimizer.device = state;
    return result;
  }
};

TEST_F(FirstTouch, touches_every_page_of_what_updates_use_and_nothing_without_nodes) {
  const auto ops = kernels::make_cpu_ops({});
  const model::Model model(wide_llama(), DType::f32, *ops);
  const shard::Layout layout(shard::shape_of(model), 1);
  for (const Tier tier : {Tier::device, Tier::host, Tier::disk}) {
    plan::PlanRequest request = small_request();
    request.placement = {Tier::device, tier, Tier::host, 0};
    request.chunk_elements = 1 << 17;
    const plan::Plan plan = plan::make_plan(model, layout, request);
    const auto device = device::make_host_device();
    RunMemory memory(*device, plan.memory);
    const auto pages = [&] {
      std::vector<bool> all;
      for (const plan::Task& task : plan.training.tasks) {
        if (task.kind != plan::TaskKind::update) continue;
        for (const plan::Access& access : plan.training.accesses_of(task)) {
          const auto found =
              resident_pages(memory.span(access.region, access.offset, access.bytes).on_host());
          all.insert(all.end(), found.begin(), found.end());
        }
      }
      return all;
    };
    const auto touch = [&](Workers& workers) {
      const auto optimizer_ops = kernels::make_cpu_optimizer_ops(workers);
      touch_first({*device, *ops, *optimizer_ops, model, layout, plan, memory});
    };
    Workers on_one_node(2);
    touch(on_one_node);
    EXPECT_EQ(std::ranges::count(pages(), true), 0) << name_of(tier);
    Workers on_two_nodes(ThreadCount{2, "a test", {{{0, {}}, 1}, {{1, {}}, 1}}});
    touch(on_two_nodes);
    EXPECT_EQ(std::ranges::count(pages(), false), 0) << name_of(tier);
  }
}

// Two processors stand for two nodes; where this process may not use them, nothing is bound, but
// the loops are split as on two nodes all the same.
TEST_F(FirstTouch, a_run_on_two_nodes_is_the_run_on_one_to_the_last_bit) {
  if (choose_threads(2).threads < 2) GTEST_SKIP() << "one processor";
  for (const config::Placement state : {config::Placement::none, config::Placement::nvme}) {
    const config::Settings one = wide_settings("one", state);
    const std::vector<Row> reference = run(one);
    ASSERT_EQ(reference.size(), 6U);
    const std::string weights = read(folder_ / "one" / "model.safetensors");
    const MadeUpMachine machine("node:2 core:1 pu:1");
    const Result result = train_run(wide_settings("two", state));
    ASSERT_EQ(result.code, 0) << result.error;
    EXPECT_TRUE(result.says("1 on NUMA node 0, 1 on NUMA node 1"));
    EXPECT_THAT(rows(folder_ / "two"), ElementsAreArray(reference));
    EXPECT_TRUE(read(folder_ / "two" / "model.safetensors") == weights) << "other weights";
    std::filesystem::remove_all(folder_ / "one");
    std::filesystem::remove_all(folder_ / "two");
  }
}

}  // namespace
}  // namespace terrace::runtime::testing
