#include "terrace/core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

struct Lines {
  std::vector<std::pair<LogLevel, std::string>> lines;
  Log::Sink sink() {
    return [this](LogLevel level, std::string_view line) { lines.emplace_back(level, line); };
  }
};

TEST(Log, hands_each_line_to_its_sink_with_its_level) {
  Lines kept;
  Log log(kept.sink());
  log.info("loss {:.2f}", 1.5);
  log.warning("{} left", "little");
  EXPECT_THAT(kept.lines, ElementsAre(Pair(LogLevel::info, "loss 1.50"),
                                      Pair(LogLevel::warning, "little left")));
}

TEST(Log, tells_a_fallback_once_a_key_and_keeps_it_for_the_record) {
  Lines kept;
  Log log(kept.sink());
  log.fallback("uring", "io_uring is forbidden here, a thread pool reads instead");
  log.fallback("uring", "io_uring is forbidden here, a thread pool reads instead");
  log.fallback("bf16", "this CPU has no bf16, fp32 is used");
  EXPECT_THAT(kept.lines,
              ElementsAre(Pair(LogLevel::warning,
                               "io_uring is forbidden here, a thread pool reads instead"),
                          Pair(LogLevel::warning, "this CPU has no bf16, fp32 is used")));
  EXPECT_THAT(log.fallbacks(),
              ElementsAre("io_uring is forbidden here, a thread pool reads instead",
                          "this CPU has no bf16, fp32 is used"));
}

TEST(Log, calls_its_sink_from_one_thread_at_a_time) {
  Lines kept;  // a plain vector: the thread sanitizer sees an unlocked call
  Log log(kept.sink());
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&log] {
        for (int i = 0; i < 100; ++i) {
          log.info("{}", i);
          log.fallback("same", "same");
        }
      });
    }
  }
  EXPECT_EQ(kept.lines.size(), 401U);
}

}  // namespace
}  // namespace terrace
