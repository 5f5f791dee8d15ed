#include "terrace/core/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

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

}  // namespace

Trace::Trace(std::vector<std::string> lanes, std::size_t spans_max, Steps steps) : steps_(steps) {
  for (std::string& name : lanes) {
    lanes_.push_back({std::move(name), {}, 0});
    lanes_.back().spans.reserve(spans_max);
  }
}

void Trace::write(const std::filesystem::path& path, int rank) const {
  std::ofstream file(path);
  file << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  file << fmt::format(
      R"({{"name":"process_name","ph":"M","pid":{0},"args":{{"name":"rank {0}"}}}})", rank);
  for (std::size_t index = 0; index < lanes_.size(); ++index) {
    const Lane& lane = lanes_[index];
    std::vector<Span> spans = lane.spans;
    std::ranges::sort(spans, {}, &Span::begin_us);
    std::vector<std::int64_t> row_ends;  // a row holds spans that do not overlap
    for (const Span& span : spans) {
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
      file << fmt::format(
          ",\n{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},"
          "\"args\":{{{}}}}}",
          span.name, rank, thread, span.begin_us, span.end_us - span.begin_us, arguments_of(span));
    }
    for (std::size_t row = 0; row < std::max<std::size_t>(row_ends.size(), 1); ++row) {
      const std::size_t thread = index * kRowsPerLane + row;
      file << fmt::format(
          ",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{0},\"tid\":{1},\"args\":{{\"name\":"
          "\"{2}\"}}}},\n{{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":{0},\"tid\":{1},"
          "\"args\":{{\"sort_index\":{1}}}}}",
          rank, thread, lane.name);
    }
  }
  file << "\n]}\n";
  file.flush();
  require(file.good(), ErrorKind::io,
          "cannot write the trace to {}; is the folder there, and is "
          "there space?",
          path.string());
}

}  // namespace terrace
