#include "task_count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/error_of.h"
#include "plan/plans.h"
#include "terrace/core/error.h"

namespace terrace::plan {
namespace {

using terrace::testing::error_of;
using ::testing::HasSubstr;

class TaskCountTest : public PlanTest {
 protected:
  using PlanTest::PlanTest;

  /// The number that follows `words` in the error that `request` ends with.
  [[nodiscard]] std::int64_t advice(const PlanRequest& request, const std::string& words) const {
    const Error error = error_of([&] { (void)make(request); });
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    const std::string text = error.what();
    EXPECT_THAT(text, HasSubstr(words));
    return std::stoll(text.substr(text.find(words) + words.size()));
  }
};

TEST_F(TaskCountTest, is_about_what_a_plan_has) {
  // Of a step, whatever it is made of: copies, sums, losses, the decision.
  constexpr std::int64_t kOthers = 50;
  for (const PlanRequest& base : {request(), split_request(), early_request()}) {
    for_each_request(base, [&](const PlanRequest& request) {
      if (HasFailure()) return;
      SCOPED_TRACE(describe(request));
      const auto tasks = static_cast<std::int64_t>(make(request).training.tasks.size());
      const std::int64_t counted = task_count(model_, layout_, request).all();
      EXPECT_LE(counted, 2 * tasks);
      EXPECT_LE(tasks, 2 * counted + kOthers);
    });
  }
}

TEST_F(TaskCountTest, an_accumulation_of_too_many_micro_batches_is_refused_with_what_to_give) {
  PlanRequest request = PlanTest::request();
  request.micro_batches = 10'000'000;
  const std::int64_t fewer = advice(request, "lower gradient_accumulation_steps to ");
  request.micro_batches = static_cast<int>(fewer);
  EXPECT_NO_THROW(require_countable(model_, layout_, request));
  request.micro_batches *= 2;
  EXPECT_THROW(require_countable(model_, layout_, request), Error);
}

class LargeTaskCountTest : public TaskCountTest {
 protected:
  static model::Config large() {
    model::Config config = model::awkward_llama(true);
    config.vocab_size = std::int64_t{1} << 28;
    return config;
  }
  LargeTaskCountTest() : TaskCountTest(large()) {}
};

TEST_F(LargeTaskCountTest, chunks_that_are_too_many_are_refused_with_what_to_give) {
  PlanRequest request = PlanTest::request();
  for (const Tier state : {Tier::device, Tier::disk}) {
    request.placement.state = state;
    request.chunk_elements = 2048;
    request.chunk_elements = advice(request, "zero_optimization.sub_group_size to ");
    EXPECT_NO_THROW(require_countable(model_, layout_, request));
    request.chunk_elements = request.chunk_elements / 4096 * 2048;
    EXPECT_THROW(require_countable(model_, layout_, request), Error);
  }
}

}  // namespace
}  // namespace terrace::plan
