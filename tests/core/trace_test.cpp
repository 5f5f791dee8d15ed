#include "terrace/core/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/parsed_json.h"
#include "io/temporary_folder.h"
#include "terrace/core/error.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Json = nlohmann::json;

constexpr std::size_t kRead = 0;
constexpr std::size_t kWork = 1;

Trace::Span span(std::string_view name, std::int64_t step, int task, std::int64_t begin,
                 std::int64_t end) {
  Trace::Span span;
  span.name = name;
  span.step = step;
  span.task = task;
  span.begin_us = begin;
  span.end_us = end;
  return span;
}

/// The events of one phase, in the file's order.
std::vector<Json> written(const Trace& trace, const std::string& phase) {
  const testing::TemporaryFolder folder;
  trace.write(folder / "trace.json", 3);
  std::vector<Json> events;
  const Json trace_file = testing::read_json(folder / "trace.json");
  for (const Json& event : trace_file.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), 3);
    if (event.at("ph") == phase) events.push_back(event);
  }
  return events;
}

TEST(Trace, spans_of_a_lane_that_overlap_get_threads_of_their_own_beside_each_other) {
  Trace trace({{"read", 8}, {"work", 8}, {"idle", 8}}, {1, 1});
  trace.record(kRead, span("b", 1, 1, 5, 20));
  trace.record(kRead, span("a", 1, 0, 0, 10));
  trace.record(kRead, span("c", 1, 2, 10, 30));
  trace.record(kWork, span("d", 1, 3, 0, 10));
  const std::vector<Json> spans = written(trace, "X");
  ASSERT_EQ(spans.size(), 4U);
  EXPECT_EQ(spans[0].at("name"), "a");
  EXPECT_NE(spans[1].at("tid"), spans[0].at("tid"));
  EXPECT_EQ(spans[2].at("tid"), spans[0].at("tid")) << "c begins when a has ended";
  EXPECT_EQ(spans[1].at("dur"), 15);
  std::vector<std::string> names;
  for (const Json& event : written(trace, "M")) {
    if (event.at("name") == "thread_name") names.push_back(event.at("args").at("name"));
  }
  EXPECT_THAT(names, ElementsAre("read", "read", "work")) << "idle has nothing to show";
}

TEST(Trace, only_the_steps_asked_for_are_kept) {
  Trace trace({{"read", 8}}, {2, 3});
  for (std::int64_t step = 1; step <= 4; ++step) trace.record(0, span("a", step, 0, step, step));
  EXPECT_EQ(written(trace, "X").size(), 2U);
}

TEST(Trace, an_arrow_goes_from_the_task_that_made_to_the_one_that_uses) {
  Trace::Relations relations;
  relations.flows = {{1, 0, 1}, {0, 1, 0}};  // task 0 uses what task 1 made a step before
  Trace trace({{"read", 8}, {"work", 8}}, {1, 2}, relations);
  trace.record(kRead, span("make", 1, 0, 0, 10));
  trace.record(kWork, span("use", 1, 1, 12, 20));
  trace.record(kRead, span("make", 2, 0, 25, 30));
  const std::vector<Json> from = written(trace, "s");
  const std::vector<Json> to = written(trace, "f");
  ASSERT_EQ(from.size(), 2U) << "the first step has nobody before it";
  ASSERT_EQ(to.size(), 2U);
  EXPECT_EQ(from[0].at("id"), to[0].at("id"));
  EXPECT_EQ(from[0].at("ts"), 9) << "within the span that made it";
  EXPECT_EQ(to[0].at("ts"), 12);
  EXPECT_EQ(from[1].at("ts"), 19);
  EXPECT_EQ(to[1].at("ts"), 25);
  EXPECT_NE(to[0].at("tid"), to[1].at("tid"));
}

TEST(Trace, counters_follow_the_tasks_in_time_and_charts_show_all_their_series) {
  Trace::Relations relations;
  relations.counters = {{"bytes", "kept", 100}, {"bytes", "in use", 0}, {"free", "free", 2}};
  relations.changes = {{0, false, 1, 7}, {1, true, 1, -7}, {1, false, 2, -1}};
  Trace trace({{"read", 8}, {"work", 8}}, {1, 1}, relations);
  trace.record(kRead, span("make", 1, 0, 0, 10));
  trace.record(kWork, span("use", 1, 1, 12, 20));
  const std::vector<Json> charts = written(trace, "C");
  ASSERT_EQ(charts.size(), 3U);
  EXPECT_EQ(charts[0].at("ts"), 0);
  EXPECT_EQ(charts[0].at("args"), (Json{{"kept", 100}, {"in use", 7}}));
  EXPECT_EQ(charts[1].at("ts"), 12);
  EXPECT_EQ(charts[1].at("args"), (Json{{"free", 1}}));
  EXPECT_EQ(charts[2].at("ts"), 20);
  EXPECT_EQ(charts[2].at("args"), (Json{{"kept", 100}, {"in use", 0}}));
}

TEST(Trace, a_file_that_cannot_be_written_is_named) {
  const testing::TemporaryFolder folder;
  const Trace trace({{"read", 1}}, {1, 1});
  try {
    trace.write(folder / "nowhere" / "trace.json", 0);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::io);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("nowhere/trace.json"));
  }
}

}  // namespace
}  // namespace terrace
