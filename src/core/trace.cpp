#include "terrace/core/trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <utility>

#include "terrace/core/error.h"

namespace terrace {
namespace {

constexpr std::size_t kRowsPerLane = 64;  ///< thread ids that a lane's overlapping spans may take

std::string arguments_of(const Trace::Span& span) {
  std::string text = fmt::format("\"step\":{}", span.step);
  if (span.unit >= 0) text += fmt::format(",\"unit\":{}", span.unit);
  if (span.micro_batch >= 0) text += fmt::format(",\"micro_batch\":{}", span.micro_batch);
  if (span.chunk >= 0) text += fmt::format(",\"chunk\":{}", span.chunk);
  if (span.bytes > 0) text += fmt::format(",\"bytes\":{}", span.bytes);
  return text;
}

/// One trace file, event by event, and where each task's spans have gone.
class Writer {
 public:
  Writer(std::ostream& out, int rank) : out_(out), rank_(rank) {
    out_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    out_ << fmt::format(
        R"({{"name":"process_name","ph":"M","pid":{0},"args":{{"name":"rank {0}"}}}})", rank);
  }

  /// A lane's spans, each on the first thread of the lane that is free.
  void lane(std::size_t index, const std::string& name, std::vector<Trace::Span> spans) {
    std::ranges::sort(spans, {}, &Trace::Span::begin_us);
    std::vector<std::int64_t> row_ends;
    for (const Trace::Span& span : spans) {
      auto row =
          std::ranges::find_if(row_ends, [&](std::int64_t end) { return end <= span.begin_us; });
      if (row == row_ends.end() && row_ends.size() < kRowsPerLane) {
        row = row_ends.insert(row_ends.end(), 0);
      } else if (row == row_ends.end()) {
        --row;
      }
      *row = span.end_us;
      const std::size_t thread =
          index * kRowsPerLane + static_cast<std::size_t>(row - row_ends.begin());
      event(fmt::format(
          "\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"tid\":{},\"ts\":{},"
          "\"dur\":{},\"args\":{{{}}}",
          span.name, name, thread, span.begin_us, span.end_us - span.begin_us, arguments_of(span)));
      if (span.task >= 0) placed_[{span.step, span.task}] = {span.begin_us, span.end_us, thread};
    }
    for (std::size_t row = 0; row < row_ends.size(); ++row) {
      const std::size_t thread = index * kRowsPerLane + row;
      event(
          fmt::format("\"name\":\"thread_name\",\"ph\":\"M\",\"tid\":{},\"args\":{{\"name\":"
                      "\"{}\"}}",
                      thread, name));
      event(
          fmt::format("\"name\":\"thread_sort_index\",\"ph\":\"M\",\"tid\":{0},\"args\":{{"
                      "\"sort_index\":{0}}}",
                      thread));
    }
  }

  void flows(const std::vector<Trace::Flow>& flows) {
    std::int64_t id = 0;
    for (const auto& [key, target] : placed_) {
      const auto [step, task] = key;
      for (auto flow = std::ranges::lower_bound(flows, task, {}, &Trace::Flow::to);
           flow != flows.end() && flow->to == task; ++flow) {
        const auto source = placed_.find({step - flow->steps_back, flow->from});
        if (source == placed_.end()) continue;
        // An arrow leaves and enters the span in which its time stamp lies.
        const Place& from = source->second;
        arrow('s', ++id, from.thread, std::max(from.begin_us, from.end_us - 1));
        arrow('f', id, target.thread, target.begin_us);
      }
    }
  }

  void counters(const Trace::Relations& relations) {
    std::vector<std::pair<std::int64_t, const Trace::Change*>> moments;
    for (const auto& [key, place] : placed_) {
      const int task = key.second;
      for (auto change =
               std::ranges::lower_bound(relations.changes, task, {}, &Trace::Change::task);
           change != relations.changes.end() && change->task == task; ++change) {
        moments.emplace_back(change->at_end ? place.end_us : place.begin_us, &*change);
      }
    }
    std::ranges::stable_sort(moments, {}, [](const auto& moment) { return moment.first; });
    std::vector<std::int64_t> values;
    for (const Trace::Counter& counter : relations.counters) values.push_back(counter.start);
    for (std::size_t i = 0; i < moments.size(); ++i) {
      const auto [time, change] = moments[i];
      const auto counter = static_cast<std::size_t>(change->counter);
      values[counter] += change->delta;
      chart(relations.counters, relations.counters[counter].name, values, time);
    }
  }

  void finish() { out_ << "\n]}\n"; }

 private:
  struct Place {
    std::int64_t begin_us = 0;
    std::int64_t end_us = 0;
    std::size_t thread = 0;
  };

  void event(const std::string& fields) {
    out_ << fmt::format(",\n{{\"pid\":{},{}}}", rank_, fields);
  }
  void arrow(char phase, std::int64_t id, std::size_t thread, std::int64_t time) {
    event(
        fmt::format("\"name\":\"data\",\"cat\":\"data\",\"ph\":\"{}\",\"bp\":\"e\",\"id\":{},"
                    "\"tid\":{},\"ts\":{}",
                    phase, id, thread, time));
  }
  void chart(const std::vector<Trace::Counter>& counters, const std::string& name,
             const std::vector<std::int64_t>& values, std::int64_t time) {
    std::string series;
    for (std::size_t i = 0; i < counters.size(); ++i) {
      if (counters[i].name != name) continue;
      series +=
          fmt::format("{}\"{}\":{}", series.empty() ? "" : ",", counters[i].series, values[i]);
    }
    event(
        fmt::format("\"name\":\"{}\",\"ph\":\"C\",\"ts\":{},\"args\":{{{}}}", name, time, series));
  }

  std::ostream& out_;
  int rank_;
  std::map<std::pair<std::int64_t, int>, Place> placed_;  ///< by step and task
};

}  // namespace

Trace::Trace(const std::vector<LaneRoom>& lanes, StepRange steps, Relations relations)
    : steps_(steps), relations_(std::move(relations)) {
  for (const LaneRoom& lane : lanes) {
    lanes_.push_back({lane.name, {}, 0});
    lanes_.back().spans.reserve(lane.spans_max);
  }
  std::ranges::sort(relations_.flows, {}, &Flow::to);
  std::ranges::stable_sort(relations_.changes, {}, &Change::task);
}

void Trace::write(const std::filesystem::path& path, int rank) const {
  std::ofstream file(path);
  require(file.is_open(), ErrorKind::io, "cannot write the trace to {}: {}", path.string(),
          errno_name(errno));
  Writer writer(file, rank);
  for (std::size_t index = 0; index < lanes_.size(); ++index) {
    writer.lane(index, lanes_[index].name, lanes_[index].spans);
  }
  writer.flows(relations_.flows);
  writer.counters(relations_);
  writer.finish();
  file.flush();
  require(file.good(), ErrorKind::io, "cannot write the trace to {}: {}; is there space?",
          path.string(), errno_name(errno));
}

}  // namespace terrace
