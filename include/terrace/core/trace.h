#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

/// Steps `first` to `last`, both included, counted from 1.
struct StepRange {
  std::int64_t first = 1;
  std::int64_t last = 0;
};

/// Spans of work on named lanes, kept in memory and written as Chrome Trace Event JSON, which opens
/// in Perfetto: one process a rank, one thread a lane, arrows between tasks, counters. Each lane
/// records from one thread at a time; lanes are independent. A full lane drops what follows and
/// counts it.
class Trace {
 public:
  struct Span {
    std::string_view name;  ///< outlives the trace
    std::int64_t begin_us = 0;
    std::int64_t end_us = 0;
    std::int64_t step = 0;
    int task = -1;  ///< its number in the step; -1: none, as for the next three
    int unit = -1;
    int micro_batch = -1;
    int chunk = -1;
    std::uint64_t bytes = 0;
  };

  /// Task `from` of the step `steps_back` before made what task `to` uses: an arrow.
  struct Flow {
    int from = 0;
    int to = 0;
    int steps_back = 0;
    friend auto operator<=>(const Flow&, const Flow&) = default;
  };
  /// A quantity over time: `series` is one of the stacked parts of the chart `name`.
  struct Counter {
    std::string name;
    std::string series;
    std::int64_t start = 0;
  };
  /// The task changes a counter (by its index) by `delta` when it begins, or when it ends.
  struct Change {
    int task = 0;
    bool at_end = false;
    int counter = 0;
    std::int64_t delta = 0;
  };
  /// What the tasks of a step have to do with each other; the same in every step.
  struct Relations {
    std::vector<Flow> flows;
    std::vector<Counter> counters;
    std::vector<Change> changes;
  };

  struct LaneRoom {
    std::string name;
    std::size_t spans_max = 0;
  };

  /// The lanes' room is reserved now: recording allocates nothing.
  Trace(const std::vector<LaneRoom>& lanes, StepRange steps, Relations relations = {});

  void record(std::size_t lane, const Span& span) {
    if (span.step < steps_.first || span.step > steps_.last) return;
    Lane& target = lanes_[lane];
    if (target.spans.size() < target.spans.capacity()) {
      target.spans.push_back(span);
    } else {
      ++target.dropped;
    }
  }

  /// Writes the file. Overlapping spans of a lane (disk requests) go to threads of their own under
  /// the lane's name; lanes without a span are left out. Errors: io, with the path.
  void write(const std::filesystem::path& path, int rank) const;

 private:
  struct Lane {
    std::string name;
    std::vector<Span> spans;
    std::uint64_t dropped = 0;
  };
  std::vector<Lane> lanes_;
  StepRange steps_;
  Relations relations_;
};

}  // namespace terrace
